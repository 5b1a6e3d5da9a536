"""Strings that tokenizers and streams get wrong, always the same ones."""

import random
from typing import Final

CURATED: Final = (
    "", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\t\t \t", " \n ", "\n \n", "a", " a", "a ",
    "Hello, world!", "Hello,  world!", " leading", "trailing ", "trailing  ", "   three   spaces   ",
    "tab\tseparated\tvalues", "line\nline\r\nline\rline", "ends with newline\n", "\n\nstarts so\n\n",
    "1", "12", "123", "1234", "12345678901234567890", "3.14159", "1,000,000.00", "0x1F", "1e-10",
    "٠١٢٣٤٥", "१२३४", "½ ¼ ²³ ⅷ Ⅻ ①②", "I've you're he'll she'd it's don't I'm", "I'VE YOU'RE IT'S",
    "’s curly ‘quotes’ “double”", "don''t", "'s 't 're", "o'clock rock'n'roll",
    "😀", "😀😀😀", "👩‍👩‍👧‍👦", "👨🏽‍🚀", "🇩🇪🇫🇷🇯🇵", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "❤️", "❤", "a😀b", " 😀 ", "1️⃣", "👍🏿👍🏻", "☺︎☺️",
    "שלום עולם", "مرحبا بالعالم", "السَّلَامُ عَلَيْكُمْ", "\u202eRTL override\u202c", "abc שלום 123 עולם", "\u200f\u200e",
    "你好，世界！", "こんにちは世界", "안녕하세요 세계", "繁體中文字", "日本語ﾃｷｽﾄ", "ㄱㄴㄷ", "漢字かな交じり文。", "𠀀𠀁𪚥",
    "नमस्ते दुनिया", "สวัสดีชาวโลก", "வணக்கம்", "Здравствуй, мир", "Γειά σου Κόσμε", "ქართული", "Հայերեն", "አማርኛ",
    "e\u0301", "é", "a\u0300\u0301\u0302\u0303", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!͖̬̰̙̗̿̋ͥͥ̂ͣ̐́́͜͞", "ﬁ ﬂ ﬃ", "ǅ ǆ Ǆ", "ſ ß ẞ", "İ ı",
    "\x00", "a\x00b", "\x01\x02\x03", "\x1b[31mred\x1b[0m", "\x7f", "\x80\x9f", "\x85next line", "\ufeffBOM", "\ufffd",
    "\u00a0nbsp\u00a0", "\u2003em\u2003space", "\u3000ideographic\u3000", "\u200bzero\u200bwidth", "\u2028line\u2029para",
    "\ufffe\uffff", "\U0010ffff", "\ue000private\uf8ff", "\ufdd0", "\u00ad soft\u00adhyphen", "\u2060word\u2060joiner",
    "<|im_start|>", "<|im_end|>", "<|im_start|>user\nhi<|im_end|>\n", "a<|im_end|>b", " <|im_end|> ", "<|im_end|", "|im_end|>",
    "<|im_end|><|im_end|>", "<|endoftext|>", "text<|endoftext|>text", "< |im_end|>", "<|IM_END|>", "<|im_<|im_end|>end|>",
    "<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "<start_of_turn>user\nhi<end_of_turn>\n", "<mask>", "[multimodal]",
    "<unused5>", "<unused99> x", "<0x41>", "<0xFF>", "<repo_name>a/b<file_sep>c.py\n", "<reponame>", "<h1>Title</h1><br>",
    "▁", "▁▁", "a▁b", "Ġ", "ĠHello", "Ċ", "Ġa Ċb", "Â ¡ ÿ", "<tool_call>{\"name\": \"f\"}</tool_call>", "<think>\nhm\n</think>",
    "def f(x):\n    return x * 2\n", "if (a && b) { c += 1; } // done", "<div class=\"x\">&nbsp;</div>", "SELECT * FROM t WHERE a='b';",
    "\tif x:\n\t\tpass\n", "        eight spaces", "a" * 300, "ab" * 200, "x " * 200, " " * 97, "\n" * 45, "\t" * 40, "-" * 130, "=" * 71,
    "😀" * 50, "é" * 100, "1" * 100, "a1" * 60, "漢" * 90, "aA" * 70, ". . . . .", "..........", "?!?!?!", "#$%^&*()_+{}|:\"<>?",
    "https://example.com/a/b?c=d&e=f#g", "user@example.com", "C:\\Users\\x\\file.txt", "/usr/local/bin", "$100.00 €50 £20 ¥1000",
    "supercalifragilisticexpialidocious", "Donaudampfschifffahrtsgesellschaftskapitän", "CamelCaseIdentifier", "snake_case_name",
    "\\u0041 \\n \\x41", "%s %d {} {0}", "{{ jinja }} {% raw %}", "\"quoted\" 'single' `back`", "—–‐‑‒―…", "←↑→↓⇒∀∃∈∑∫√∞≠≤≥",
    "Hello\u0000\ud7ff\ue000World", "mixed\r\n\r\n\n\rends", "a\u0338=b", "\u0e33\u0e33", "क्षि", "เ เ", "한\u1112\u1161\u11ab",
)  # fmt: skip

_ALPHABETS: Final = (
    "abcdefghij ", "ABCxyz'sdt  ", "0123456789.,- ", " \t\n\r", "é ü ñ ç å ø", "😀😁👍🏽‍❤️🇩🇪 ", "你好世界。，、 ", "שלום עולם ",
    "مرحبا ", "<|>im_endstar ", "▁ĠĊ<0xAF> ", "{}[]()=+-*/;:\n    ", "\u0300\u0301\u0338a e o ", "\u200b\u200d\ufe0f\u00a0 x",
    "\x00\x01\x1f\x7f\x80", "한국어조선글 ", "कखगघङ्ि ा", "abAB12 .,!?\n'\"é漢😀\t",
)  # fmt: skip
_WORDS: Final = (
    "the", "The", " quick", "brown ", "\n", "42", "1999", "don't", "I'M", "<|im_end|>", "<end_of_turn>", "<bos>", "😀", "漢字",
    "🏳️‍🌈", " ", "  ", "\t", "étude", "naïve", "שלום", "ZZZ", "foo_bar", "->", "==", "...", "//", "▁x", "\u00a0", "\r\n", "ﬀ", "٣",
)  # fmt: skip


def nasty_strings(count: int = 700, seed: int = 20240607) -> list[str]:
    """`count` different strings: the curated ones, then random ones over awkward alphabets."""
    chance = random.Random(seed)
    strings = dict.fromkeys(CURATED)
    while len(strings) < count:
        kind = chance.randrange(4)
        if kind == 0:
            alphabet = chance.choice(_ALPHABETS)
            text = "".join(chance.choices(alphabet, k=chance.randint(1, 40)))
        elif kind == 1:
            text = "".join(chance.choices(_WORDS, k=chance.randint(1, 14)))
        elif kind == 2:
            text = " ".join(chance.choices(_WORDS, k=chance.randint(1, 14)))
        else:
            text = "".join(_any_character(chance) for _ in range(chance.randint(1, 16)))
        strings[text] = None
    return list(strings)


def _any_character(chance: random.Random) -> str:
    """Of any plane, assigned or not; no surrogates, which no valid JSON body can hold."""
    top = chance.choice((0x7F, 0x7FF, 0xFFFF, 0x10FFFF))
    code = chance.randint(0, top)
    return chr(code) if not 0xD800 <= code <= 0xDFFF else "\ud7ff"
