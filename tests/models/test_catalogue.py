"""Cards, files in folders and hub ids under one roof."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models import folders
from models.card import FileSource, HubSource, ModelCard, SamplingDefaults
from models.catalogue import SHIPPED, Catalogue, CatalogueError, CatalogueFile, read_catalogue, schema_text
from models.errors import UnknownModel
from models.folders import ModelFolders
from tests.models.gguf_files import BERT, LLAMA, write_gguf, write_shards

BASE = {key: value for key, value in LLAMA.items() if key != "tokenizer.chat_template"}

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "catalogue.yaml"
        path.write_text(text, "utf-8")
        return path

    return write


def of(*folders_: Path, cards: list[ModelCard] | None = None, hub_allow: tuple[str, ...] = ()) -> Catalogue:
    return Catalogue(cards or [], model_dirs=folders_, hub_allow=hub_allow)


def ids(catalogue: Catalogue) -> list[str]:
    return [card.id for card in catalogue.cards()]


def unknown(catalogue: Catalogue, name: str) -> UnknownModel:
    with pytest.raises(UnknownModel) as caught:
        catalogue.resolve(name)
    return caught.value


def file_card(card_id: str, path: str, **fields: object) -> ModelCard:
    return ModelCard.model_validate({"id": card_id, "sources": {"llamacpp": {"path": path}}, **fields})


# The shipped file


def test_the_shipped_catalogue_offers_the_default_model() -> None:
    card = Catalogue.load(None).resolve("smollm2-135m-instruct")

    assert (card.backend, card.context_length, card.capabilities) == (
        "llamacpp",
        8192,
        ("chat", "completion"),
    )


def test_the_schema_beside_the_catalogue_is_current() -> None:
    assert SHIPPED.with_name("catalogue.schema.json").read_text("utf-8") == schema_text()


def commented_card() -> dict[str, object]:
    """The example with every option, with the marks taken off; an alternative has two."""
    example = SHIPPED.read_text("utf-8").split("a test reads it.\n#\n")[1]
    lines = [line[1:] for line in example.splitlines()]
    card = yaml.safe_load("models:\n" + "\n".join(lines))["models"][0]
    assert isinstance(card, dict)
    return card


def test_the_example_in_the_shipped_file_is_a_valid_card() -> None:
    assert CatalogueFile.model_validate({"models": [commented_card()]})


def test_every_option_of_a_card_stands_in_the_example_once() -> None:
    text = SHIPPED.read_text("utf-8")

    assert set(commented_card()) == set(ModelCard.model_fields)
    sampling = commented_card()["sampling"]
    assert isinstance(sampling, dict)
    assert set(sampling) == set(SamplingDefaults.model_fields)
    for option in ("path", "package", "resource", "version", "repo", "file", "revision", "name"):
        assert re.search(rf"^#[ #]+{option}:", text, re.MULTILINE), option


# The file's own mistakes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: [", "not YAML"),
        ("\x00", "not YAML"),
        ("", "valid dictionary"),
        ("[]", "valid dictionary"),
        ("models: []\nextra: 1", "extra: is not an option"),
        ("models:\n- sources: {llamacpp: {path: m}}", "model number 1: id: field required"),
        (
            "models:\n- id: a\n  sources: {llamacpp: {path: m, paht: n}}",
            "model 'a': sources.llamacpp.paht: is not an",
        ),
        ("models:\n- id: a\n  id: b\n  sources: {llamacpp: {path: m}}", "'id' appears twice"),
        (
            "models:\n- id: a\n  sources: {llamacpp: {path: m}}\n  sampling: {temperature: 3}",
            "model 'a': sampling.temperature: input should be less than or equal to 2",
        ),
        (
            "models:\n- {id: a, sources: {fake: {name: a}}}\n- {id: b, aliases: [a], sources: {fake: {name: b}}}",
            "the name 'a' is used by 'a' and again by 'b'",
        ),
    ],
)
def test_a_mistake_in_the_catalogue_is_named_with_its_place(
    written: Callable[[str], Path], text: str, words: str
) -> None:
    with pytest.raises(CatalogueError, match=re.escape(words)):
        Catalogue.load(written(text))


def test_all_mistakes_are_named_at_once(written: Callable[[str], Path]) -> None:
    path = written("models:\n- {id: ../a, sources: {fake: {name: a}}}\n- {id: b, sources: {}}\n")

    with pytest.raises(CatalogueError) as caught:
        read_catalogue(path)

    assert len(str(caught.value).splitlines()) == 2


def test_a_missing_catalogue_names_its_path(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"absent\.yaml"):
        Catalogue.load(tmp_path / "absent.yaml")


# Files that appear by themselves


def test_a_file_is_served_under_its_path_without_the_suffix(models: Path) -> None:
    path = write_gguf(models / "Sub" / "Model.Q4_K_M.gguf")
    catalogue = of(models)

    card = catalogue.resolve("Sub/Model.Q4_K_M")
    assert ids(catalogue) == ["Sub/Model.Q4_K_M"]
    assert card.sources["llamacpp"] == FileSource(path=str(path))
    assert card.context_length == 512


@pytest.mark.parametrize("name", ["m.gguf", "{folder}/m.gguf", "{folder}/m"])
def test_a_file_answers_to_its_suffix_and_its_absolute_path(models: Path, name: str) -> None:
    write_gguf(models / "m.gguf")

    assert of(models).resolve(name.format(folder=models)).id == "m"


@pytest.mark.parametrize(
    ("metadata", "capabilities"),
    [
        (LLAMA, ("chat", "completion")),
        (BASE, ("completion",)),
        (
            {**LLAMA, "tokenizer.chat_template": "{% for tool in tools %}{{ tool }}{% endfor %}"},
            ("chat", "completion", "tools"),
        ),
        (
            {**LLAMA, "tokenizer.chat_template": "{{ content.split('</think>')[-1] }}"},
            ("chat", "completion", "reasoning"),
        ),
        (BERT, ("embeddings",)),
        ({**BERT, "bert.pooling_type": 4}, ("rerank",)),
    ],
)
def test_capabilities_come_from_the_file(
    models: Path, metadata: dict[str, object], capabilities: tuple[str, ...]
) -> None:
    write_gguf(models / "m.gguf", metadata)  # type: ignore[arg-type]

    assert of(models).resolve("m").capabilities == capabilities


def test_a_new_file_appears_and_a_deleted_one_goes(models: Path) -> None:
    catalogue = of(models)
    path = write_gguf(models / "late.gguf")
    assert ids(catalogue) == ["late"]

    path.unlink()

    assert ids(catalogue) == []
    assert unknown(catalogue, "late")


def test_a_new_file_deep_inside_appears(models: Path) -> None:
    (models / "a" / "b").mkdir(parents=True)
    catalogue = of(models)
    write_gguf(models / "a" / "b" / "c.gguf")

    assert ids(catalogue) == ["a/b/c"]


def test_a_file_that_is_still_being_copied_appears_once_it_is_whole(models: Path) -> None:
    whole = write_gguf(models / "m.gguf").read_bytes()
    (models / "m.gguf").write_bytes(whole[:500])
    catalogue = of(models)
    assert ids(catalogue) == []

    with (models / "m.gguf").open("ab") as file:
        file.write(whole[500:])

    assert ids(catalogue) == ["m"]


def test_a_broken_file_is_not_listed_but_can_be_named(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    (models / "m.gguf").write_bytes(b"nonsense")
    catalogue = of(models)

    assert ids(catalogue) == []
    assert catalogue.resolve("m").backends == ("llamacpp",)
    assert "not a GGUF" in catalogue.broken()["m"]
    assert "not a GGUF" in caplog.text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_a_broken_one(models: Path) -> None:
    write_gguf(models / "m.gguf").chmod(0)

    assert "permission denied" in of(models).broken()["m"]


def test_hidden_files_other_suffixes_and_folders_called_gguf_are_passed_over(models: Path) -> None:
    write_gguf(models / ".hidden.gguf")
    write_gguf(models / ".cache" / "m.gguf")
    write_gguf(models / "m.bin")
    write_gguf(models / "folder.gguf" / "inside.gguf")

    assert ids(of(models)) == ["folder.gguf/inside"]


def test_the_suffix_is_known_in_any_case(models: Path) -> None:
    write_gguf(models / "M.GGUF")

    assert ids(of(models)) == ["M"]


def test_a_sharded_model_appears_once_under_its_base_name(models: Path) -> None:
    first = write_shards(models / "sub", "big", 3)
    catalogue = of(models)

    assert ids(catalogue) == ["sub/big"]
    for name in ("sub/big", "sub/big.gguf", "sub/big-00001-of-00003", "sub/big-00001-of-00003.gguf"):
        assert catalogue.resolve(name).sources["llamacpp"] == FileSource(path=str(first))
    assert unknown(catalogue, "sub/big-00002-of-00003")


def test_a_missing_part_hides_the_model_until_it_arrives(models: Path) -> None:
    write_shards(models, "big", 2, only=[1])
    catalogue = of(models)
    assert ids(catalogue) == []

    write_shards(models, "big", 2, only=[2])

    assert ids(catalogue) == ["big"]


def test_of_two_folders_the_first_wins(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "a" / "m.gguf")
    write_gguf(tmp_path / "b" / "m.gguf")

    assert of(tmp_path / "a", tmp_path / "b").resolve("m").sources["llamacpp"] == FileSource(path=str(first))


def test_a_folder_that_vanishes_and_comes_back_is_followed(models: Path) -> None:
    write_gguf(models / "m.gguf")
    catalogue = of(models)
    models.rename(models.with_name("away"))
    assert ids(catalogue) == []

    models.with_name("away").rename(models)

    assert ids(catalogue) == ["m"]


def test_file_names_that_no_request_could_carry_are_passed_over(models: Path) -> None:
    for name in (b"a\\b.gguf", b"a\xff.gguf", b"a\nb.gguf", b" .gguf"):
        write_gguf(Path(os.fsdecode(os.path.join(os.fsencode(models), name))))

    assert ids(of(models)) == []


def test_decomposed_file_names_answer_to_composed_names(models: Path) -> None:
    write_gguf(models / "u\u0308.gguf")

    assert of(models).resolve("ü").id == "ü"


# Links


def test_a_link_out_of_its_folder_is_ignored(tmp_path: Path, models: Path) -> None:
    (models / "m.gguf").symlink_to(write_gguf(tmp_path / "outside.gguf"))
    catalogue = of(models)

    assert ids(catalogue) == []
    assert unknown(catalogue, "m")


def test_a_link_within_its_folder_is_a_name_of_its_own(models: Path) -> None:
    write_gguf(models / "blobs" / "m.gguf")
    (models / "latest.gguf").symlink_to("blobs/m.gguf")

    assert ids(of(models)) == ["blobs/m", "latest"]


def test_a_linked_folder_is_not_entered(tmp_path: Path, models: Path) -> None:
    write_gguf(tmp_path / "outside" / "m.gguf")
    (models / "sub").symlink_to(tmp_path / "outside")
    (models / "loop").symlink_to(models)

    assert ids(of(models)) == []


def test_a_link_that_is_turned_outwards_later_disappears(tmp_path: Path, models: Path) -> None:
    write_gguf(models / "m.gguf")
    (models / "link.gguf").symlink_to("m.gguf")
    catalogue = of(models)
    (models / "link.gguf").unlink()
    (models / "link.gguf").symlink_to(write_gguf(tmp_path / "outside.gguf"))

    assert ids(catalogue) == ["m"]


def test_a_part_that_leads_out_of_the_folder_hides_its_model(tmp_path: Path, models: Path) -> None:
    write_shards(models, "big", 2, only=[1])
    write_shards(tmp_path, "big", 2, only=[2])
    (models / "big-00002-of-00002.gguf").symlink_to(tmp_path / "big-00002-of-00002.gguf")

    assert ids(of(models)) == []


def test_a_model_folder_may_itself_be_a_link(tmp_path: Path, models: Path) -> None:
    write_gguf(models / "m.gguf")
    (tmp_path / "link").symlink_to(models)

    assert ids(of(tmp_path / "link")) == ["m"]
    assert of(tmp_path / "link").resolve(f"{tmp_path}/link/m.gguf").id == "m"


# Names that must not lead anywhere

HOSTILE = [
    *(
        "../secret",
        "..",
        "a/../../secret",
        "/etc/passwd",
        "/etc/passwd.gguf",
        "//etc/passwd",
        "~/secret",
        "m\0",
        "m\0.gguf",
    ),
    *(
        "..\\secret",
        "http://host/m.gguf",
        "file:///etc/passwd",
        "m/",
        "./m",
        "m\n",
        "%2e%2e/secret",
        "{folder}/../secret",
    ),
    *("{folder}-evil/m", "{folder}/", "{folder}", "\ud800", "x" * 5_000, ""),
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_leads_out_is_unknown_and_nothing_is_read(
    models: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(models / "m.gguf")
    write_gguf(models.parent / "secret.gguf")
    catalogue = of(models, hub_allow=("*",))
    settle(catalogue)
    read: list[object] = []
    monkeypatch.setattr(folders, "read_header", read.append)

    assert unknown(catalogue, name.format(folder=models) if "{" in name else name).near == ()
    assert read == []


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(st.sampled_from("./\\~ms\0:%*ecrt"), max_size=24))
def test_no_name_reaches_a_file_outside_the_folders(models: Path, name: str) -> None:
    if not (models / "m.gguf").exists():
        write_gguf(models / "m.gguf")
        write_gguf(models.parent / "secret.gguf")
    try:
        card = of(models).resolve(name)
    except UnknownModel:
        return

    assert card.id == "m"


def settle(catalogue: Catalogue) -> None:
    """Let the folders count as unchanged for long enough, as they are a second later."""
    catalogue._folders._now_ns = lambda: time.time_ns() + 10**12
    catalogue.cards()


# Cards and files together


def test_a_card_wins_over_a_file_of_the_same_name(models: Path) -> None:
    write_gguf(models / "m.gguf")
    card = ModelCard.model_validate({"id": "m", "sources": {"fake": {"name": "m"}}})
    catalogue = of(models, cards=[card])

    assert [listed.backend for listed in catalogue.cards()] == ["fake"]
    assert catalogue.resolve("m").backend == "fake"


def test_a_file_that_a_card_points_to_is_no_second_model(models: Path) -> None:
    write_gguf(models / "m.gguf")
    catalogue = of(models, cards=[file_card("mine", "m.gguf")])

    assert ids(catalogue) == ["mine"]
    assert catalogue.resolve("m").id == "mine"


def test_what_a_card_leaves_open_is_read_from_its_file(models: Path) -> None:
    write_gguf(models / "m.gguf", BASE)
    card = of(models, cards=[file_card("mine", "m.gguf")]).resolve("mine")

    assert (card.context_length, card.capabilities) == (512, ("completion",))


def test_what_a_card_says_wins_over_its_file(models: Path) -> None:
    write_gguf(models / "m.gguf")
    cards = [file_card("mine", "m.gguf", context_length=128, capabilities=["completion"])]
    card = of(models, cards=cards).resolve("mine")

    assert (card.context_length, card.capabilities) == (128, ("completion",))


def test_a_template_in_the_card_makes_a_base_model_chat(models: Path) -> None:
    write_gguf(models / "m.gguf", BASE)
    card = of(models, cards=[file_card("mine", "m.gguf", chat_template="{{ messages }}")]).resolve("mine")

    assert card.capabilities == ("chat", "completion")


def test_a_relative_path_is_looked_for_in_every_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    path = write_gguf(tmp_path / "b" / "m.gguf")
    catalogue = of(tmp_path / "a", tmp_path / "b", cards=[file_card("mine", "m.gguf")])

    assert catalogue.resolve("mine").sources["llamacpp"] == FileSource(path=str(path))


def test_a_card_whose_file_is_missing_is_still_listed(models: Path) -> None:
    assert ids(of(models, cards=[file_card("mine", "absent.gguf")])) == ["mine"]


def test_aliases_resolve_to_the_card() -> None:
    assert of(cards=[file_card("mine", "/m.gguf", aliases=["other"])]).resolve("other").id == "mine"


def test_only_cards_with_a_source_for_the_backend_are_listed_for_it(models: Path) -> None:
    write_gguf(models / "m.gguf")
    both = ModelCard.model_validate(
        {"id": "b", "sources": {"vllm": {"repo": "o/r"}, "litellm": {"name": "x/y"}}}
    )
    catalogue = of(models, cards=[both])

    assert [card.id for card in catalogue.cards("litellm")] == ["b"]
    assert [card.id for card in catalogue.cards("llamacpp")] == ["m"]
    assert catalogue.cards("nonsense") == ()


def test_an_unknown_name_is_answered_with_near_ones(models: Path) -> None:
    write_gguf(models / "qwen2-7b.gguf")

    assert unknown(of(models), "qwen2-7").near == ("qwen2-7b",)


# The hub


def test_no_hub_id_is_known_unless_allowed() -> None:
    assert unknown(of(), "meta-llama/Llama-2-7b-chat-hf")


def test_an_allowed_repository_is_for_vllm() -> None:
    card = of(hub_allow=("meta-llama/*",)).resolve("meta-llama/Llama-2-7b-chat-hf")

    assert card.sources == {"vllm": HubSource(repo="meta-llama/Llama-2-7b-chat-hf")}


def test_an_allowed_gguf_is_for_llamacpp() -> None:
    card = of(hub_allow=("*/*-GGUF/*",)).resolve("o/r-GGUF/m.Q4_K_M.gguf")

    assert card.sources == {"llamacpp": HubSource(repo="o/r-GGUF", file="m.Q4_K_M.gguf")}


def test_allowed_hub_ids_are_not_listed() -> None:
    catalogue = of(hub_allow=("*",))
    catalogue.resolve("o/r")

    assert catalogue.cards() == ()


# Cost


def test_nothing_is_read_again_while_nothing_changes(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(models / "m.gguf")
    catalogue = of(models)
    settle(catalogue)
    monkeypatch.setattr(os, "scandir", None)
    monkeypatch.setattr(folders, "read_header", None)

    assert ids(catalogue) == ["m"]


def test_a_change_costs_one_header_and_not_all(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(5):
        write_gguf(models / f"m{i}.gguf")
    catalogue = of(models)
    read: list[Path] = []
    original = folders.read_header
    monkeypatch.setattr(folders, "read_header", lambda path: (read.append(path), original(path))[1])

    write_gguf(models / "new.gguf")

    assert len(catalogue.cards()) == 6
    assert read == [models / "new.gguf"]


def test_a_cards_file_outside_the_folders_is_read_once(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "outside.gguf")
    catalogue = of(models, cards=[file_card("mine", str(path))])
    monkeypatch.setattr("models.catalogue.read_header", None)

    write_gguf(models / "new.gguf")

    assert ids(catalogue) == ["mine", "new"]
    assert catalogue.resolve("mine").context_length == 512


def test_a_growing_file_is_reported_once(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = write_gguf(models / "m.gguf").read_bytes()
    catalogue = of(models)
    for length in (100, 200, 300):
        (models / "m.gguf").write_bytes(whole[:length])
        catalogue.cards()

    assert len(caplog.messages) == 1


def test_many_threads_may_ask_while_files_come(models: Path) -> None:
    catalogue = of(models)
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(50):
                listed = ids(catalogue)
                assert [catalogue.resolve(name).id for name in listed] == listed
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(20):
        whole = models / f"m{i}.part"
        write_gguf(whole).rename(models / f"m{i}.gguf")
    for thread in threads:
        thread.join()

    assert failures == []
    assert len(ids(catalogue)) == 20


def test_a_folder_that_changed_a_moment_ago_is_read_again(models: Path) -> None:
    now = time.time_ns()
    found = ModelFolders([models], now_ns=lambda: now)
    found.scan()
    stamp = models.stat()
    write_gguf(models / "m.gguf")
    os.utime(models, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # as if both fell into one tick

    assert list(found.scan()) == ["m"]


def test_a_scan_stops_at_its_limit(
    models: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for i in range(5):
        write_gguf(models / f"m{i}.gguf")
    monkeypatch.setattr(folders, "MAX_FILES", 3)

    with caplog.at_level(logging.WARNING):
        assert len(of(models).cards()) == 3
    assert "more than 3 entries" in caplog.text
