"""Prompts of a wanted length, made of common words that most vocabularies hold whole. How many tokens they really were
is what `usage` says; reports show it."""

from __future__ import annotations

from random import Random

_TEXT = """
about above across after again air all along always animal another answer around ask away back bank bell best
bird black blue boat body book bread bridge bright bring brother build busy call carry cat chair change child
city clear close cloud cold colour come corner country cover cross dark day deep dog door down draw dream
drive dry early earth east easy eat end enough evening every eye face fall family far farm fast father field
fire first fish floor flower follow food foot forest free fresh friend front full garden give glass gold good
grass great green ground group grow half hand happy hard head hear heart heavy help high hill hold home horse
hot hour house idea inside iron island just keep king know lake land large last late laugh lead learn leave
left letter life light line list little long look machine make many map mark matter mean measure meet mile
milk mind moon more morning mother mountain move music name near night north number ocean often oil old open
order other paper part pass people picture piece place plan plane plant play point port power press quick
quiet rain reach read ready red rest rich ride right river road rock room round rule run sail sand school sea
season second seed send sentence set seven shape ship short show side silver simple sing sister sleep slow
small snow song soon sound south space speak spring stand star start state stay step stone stop story street
strong summer sun table take talk teach tell test thing think time today together top town travel tree true
turn under until voice wait walk wall warm watch water way week west wheel white wide wild wind window winter
wish wood word work world write year yellow young
"""
WORDS = tuple(_TEXT.split())


def words(count: int, random: Random) -> str:
    """`count` words, in sentences of about ten."""
    chosen = random.choices(WORDS, k=count)
    for end in range(9, len(chosen), 10):
        chosen[end] += "."
    return " ".join(chosen)


def shared_prefix(seed: int, count: int) -> str:
    """The text that all prompts of a workload begin with; the same in every process. Empty for 0."""
    return words(count, Random(f"{seed} shared prefix")) if count else ""
