"""Words for prompts: short and common, so that one word is one token in most vocabularies."""

from random import Random

_TEXT = """
river stone bridge garden window table paper letter winter summer morning evening mountain
valley forest field road street market village castle tower church school ocean island beach
harbor ship boat train wheel engine metal iron silver gold copper glass wood fire water wind
rain snow cloud storm light shadow color green yellow orange purple bird horse dog cat fish wolf
bear lion tree flower leaf root seed fruit apple bread butter milk sugar salt coffee kitchen
door floor wall roof chair bed lamp mirror clock book page story song music dance picture camera
phone radio doctor teacher student farmer soldier king queen judge lawyer writer painter singer
player captain driver pilot number circle square line point corner edge center north south east
west left right early late quick slow strong heavy bright dark warm cold sweet fresh quiet loud
empty full simple round narrow wide deep high young ancient travel build carry follow gather
listen measure open plant reach return search share speak teach watch write
"""

WORDS = tuple(_TEXT.split())


def random_text(rng: Random, num_words: int) -> str:
    """Words drawn independently, separated by spaces."""
    return " ".join(rng.choices(WORDS, k=num_words))
