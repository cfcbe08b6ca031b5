"""Sentences of many scripts: some written down, and as many as wanted made of their words, the same every time."""

from __future__ import annotations

import random
from typing import Final

WRITTEN: Final[tuple[str, ...]] = (
    "The library opens at nine and closes when the last reader leaves.",
    "A short walk after dinner helps more than a long run once a month.",
    "Our ferry was delayed by fog, so we missed the connecting train.",
    "Please refund order #4471: the box arrived empty, and the seal was broken!",
    "How do I reset the password of an account whose e-mail no longer exists?",
    "def add(a, b): return a + b  # sums two numbers",
    "SELECT name, COUNT(*) FROM visits WHERE year >= 2019 GROUP BY name;",
    "It's 23.5°C outside — not bad for mid-November, isn't it?",
    "The committee (chaired by Dr. O'Neill) re-elected its vice-president; nobody objected.",
    "Version 2.0.1-rc3 fixes CVE-2021-44228; see https://example.org/notes?id=7&lang=en.",
    "Das Gerät lässt sich über die Straße hinweg fernsteuern, außer bei starkem Schneefall.",
    "Wer früh aufsteht, hört die Vögel, bevor der Verkehr beginnt.",
    "L'été dernier, nous avons dîné près d'un château où l'on élève des chèvres.",
    "Ça n'a rien coûté, mais il a fallu attendre jusqu'à la mi-août.",
    "El niño pingüino cruzó el río mientras llovía a cántaros.",
    "¿Cuánto cuesta el billete de ida y vuelta a Cádiz? ¡Qué caro!",
    "A avó contou histórias até o pão sair do forno; então comemos em silêncio.",
    "Não há vagas no estacionamento, só na rua atrás da estação.",
    "La città è più silenziosa quando nevica, perché le automobili vanno piano.",
    "Grădina bunicii are pruni, vișini și o fântână veche.",
    "Zażółć gęślą jaźń, powiedział nauczyciel i zaczął dyktando.",
    "Łódka stała przy brzegu, chociaż wiatr zmienił kierunek.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy u řeky Vltavy.",
    "Na stole ležela čerstvá rybízová buchta a hrnek kávy.",
    "A gyerekek hógolyóztak, amíg a tűzőgép megjavult az öreg műhelyben.",
    "Árvíztűrő tükörfúrógép: ezt a próbát minden betűtípus ismeri.",
    "Fåglarna sjunger tidigt på våren när isen bryter upp i ån.",
    "Blåbærsyltetøy smaker best på nystekte vafler.",
    "Sævör grét áðan því úlpan var ónýt.",
    "Hyvää huomenta! Yöpakkanen jäädytti järven reunan.",
    "Šią žiemą upė užšalo anksčiau nei įprastai.",
    "Rīta migla sedza ezeru, līdz saule to izkliedēja.",
    "İstanbul'da yağmur yağarken vapur ağır ağır iskeleye yanaştı.",
    "Pijamalı hasta yağız şoföre çabucak güvendi.",
    "Tiếng Việt có nhiều dấu, và mỗi dấu đổi nghĩa của từ.",
    "Mẹ tôi nấu phở mỗi sáng chủ nhật.",
    "Съешь же ещё этих мягких французских булок да выпей чаю.",
    "Поезд опоздал на сорок минут, и мы пошли домой пешком.",
    "Жебракують філософи при ґанку церкви в Гадячі, ще й шатро їхнє п'яне знаємо.",
    "На Балкана вали сняг, а в долината цъфтят череши.",
    "Љубазни фењерџија чађавог лица хоће да ми покаже штос.",
    "Найти дорогу в тумане можно по звуку колокола — или по запаху моря.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "Ο ΣΙΣΥΦΟΣ έσπρωχνε τον βράχο, κάθε μέρα, ως το βράδυ.",
    "Τα παιδιά παίζουν στην αυλή του σχολείου.",
    "ყოველ დილით ბაზარში ახალი პური და ყველი მოაქვთ.",
    "Ամեն առավոտ ծերունին կերակրում է աղավնիներին հրապարակում։",
    "הספרייה נפתחת בתשע בבוקר ונסגרת לפני השקיעה.",
    "דָּג סַקְרָן שָׁט בַּיָּם הַכָּחֹל.",
    "وصل القطار متأخرًا أربعين دقيقة بسبب الضباب.",
    "هل يمكنني استبدال هذا القميص بمقاس أكبر؟",
    "إِنَّ مَعَ الْعُسْرِ يُسْرًا.",
    "کتاب‌های کهنه بوی خانهٔ پدربزرگ را می‌دهند.",
    "یہ دکان صبح نو بجے کھلتی ہے اور شام کو بند ہو جاتی ہے۔",
    "पुस्तकालय सुबह नौ बजे खुलता है और शाम को बंद हो जाता है।",
    "क्या मुझे अपना पैसा वापस मिल सकता है?",
    "हिमालय की चोटियाँ बर्फ़ से ढकी हुई हैं।",
    "आज पाऊस पडत आहे, म्हणून आम्ही घरीच थांबलो.",
    "আজ সকালে নদীর ধারে কুয়াশা ছিল, তাই নৌকা ছাড়েনি।",
    "বাংলা ভাষা মধুর।",
    "ਪੰਜਾਬ ਦੇ ਖੇਤਾਂ ਵਿੱਚ ਕਣਕ ਪੱਕ ਗਈ ਹੈ।",
    "સવારે બજારમાં તાજા શાકભાજી મળે છે.",
    "ଆଜି ବର୍ଷା ହେବ ବୋଲି ସମସ୍ତେ କହୁଛନ୍ତି।",
    "இன்று காலை ரயில் நாற்பது நிமிடங்கள் தாமதமாக வந்தது.",
    "தமிழ் மிகப் பழமையான மொழி.",
    "ఈ రోజు వాన పడుతోంది కాబట్టి మేము ఇంట్లోనే ఉన్నాము.",
    "ಇಂದು ಬೆಳಿಗ್ಗೆ ಮಂಜು ಕವಿದಿತ್ತು.",
    "മഴ പെയ്യുമ്പോൾ കുട്ടികൾ മുറ്റത്ത് കളിക്കുന്നു.",
    "අද උදෑසන දුම්රිය ප්‍රමාද විය.",
    "วันนี้ฝนตกหนัก รถไฟจึงมาช้ากว่าปกติ",
    "เด็ก ๆ เล่นน้ำอยู่ริมแม่น้ำ",
    "ມື້ນີ້ຝົນຕົກຢູ່ຫຼວງພະບາງ.",
    "ယနေ့ မိုးရွာနေသည်။",
    "ថ្ងៃនេះមានភ្លៀងធ្លាក់ខ្លាំង។",
    "དེ་རིང་གངས་བབས་སོང་།",
    "今天早上下大雨，所以火车晚点了四十分钟。",
    "图书馆九点开门，最后一位读者离开时关门。",
    "請問這件襯衫有大一號的嗎？",
    "深夜的港口只剩下燈塔的光。",
    "今朝は霧が深く、フェリーが欠航になった。",
    "すみません、この電車は京都駅に止まりますか？",
    "パスワードをリセットする方法を教えてください。",
    "ｶﾀｶﾅは半角でも全角でも読める。",
    "오늘 아침에는 안개가 짙어서 배가 뜨지 못했습니다.",
    "비밀번호를 잊어버렸는데 어떻게 바꾸나요?",
    "한글은 자음과 모음을 모아 쓴다.",
    "ዛሬ ጠዋት ዝናብ ዘነበ።",
    "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ ᎠᏂᏬᏂᎠ.",
    "Өнөөдөр өглөө цас орж, зам хаагдлаа.",
    "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ",
    "Hôm nay 😀 trời đẹp 🌤️, đi chơi nhé! 👩‍👩‍👧‍👦",
    "I ❤️ NY — 10/10 would visit again 🗽🇺🇸",
    "∀ε>0 ∃δ>0: |x−a|<δ ⇒ |f(x)−f(a)|<ε",
    "E = mc², ∑ᵢ xᵢ ≤ √(n·∑ xᵢ²), π ≈ 3.14159",
    "ﬁnally, the ﬂuﬀy oﬃce cat… №5 ™ © ® ½ ⅔ Ⅳ",
    "𝕌𝕟𝕚𝕔𝕠𝕕𝕖 𝓼𝓽𝔂𝓵𝓮𝓼 and ｆｕｌｌｗｉｄｔｈ ＬＥＴＴＥＲＳ",
    "Re: Re: Fwd: [URGENT] invoice_2024-03.pdf (final)(2).PDF",
    "tabs\tand\nline breaks\r\nand\u00a0hard blanks\u3000and\u200bzero width",
    "“Curly quotes”, «guillemets», ‘single’, „low“ — en–dash, em—dash, hyphen‐minus…",
    "Antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
)


def made(count: int, *, seed: int = 7) -> list[str]:
    """`count` sentences of the words of those above: mostly of one, sometimes of several scripts; with capitals, marks
    and blanks where nobody would put them."""
    randomness = random.Random(seed)
    by_script = [sentence.split() for sentence in WRITTEN]
    everything = [word for words in by_script for word in words]
    sentences = []
    for _ in range(count):
        source = randomness.choice(by_script) if randomness.random() < 0.7 else everything
        words = [randomness.choice(source) for _ in range(randomness.randint(1, 24))]
        words = [_varied(word, randomness) for word in words]
        sentences.append(randomness.choice((" ", " ", " ", "  ", ", ", "-", "")).join(words))
    return sentences


def _varied(word: str, randomness: random.Random) -> str:
    chance = randomness.random()
    if chance < 0.05:
        return word.upper()
    if chance < 0.1:
        return word.title()
    if chance < 0.14:
        return word + randomness.choice("\u0301\u0308\u0327\u093e\u05b0")
    if chance < 0.18:
        at = randomness.randint(0, len(word))
        return word[:at] + randomness.choice("!?。،؛…'\"@#_*&%/\\|^~`") + word[at:]
    if chance < 0.2:
        return word[::-1]
    return word
