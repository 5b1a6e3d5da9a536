"""Words that change what a question asks. English first; of other languages only negations, for the guards are strict by
default and take every word that they do not know for one that matters.
"""

from typing import Final


def _all(words: str) -> frozenset[str]:
    return frozenset(words.split())


#: Ask for nothing: left out before questions are compared.
FILLERS: Final = _all(
    "a an the please kindly hey hi hello thanks thank is are am be do does me tell give show so well ok okay"
)
#: Courtesies at the beginning, longest first.
COURTESIES: Final = tuple(
    tuple(words.split())
    for words in (
        "i would like to know", "i want to know", "do you know", "could you please", "can you please",
        "would you please", "could you", "can you", "would you", "will you", "thank you",
    )
)  # fmt: skip
NEGATIONS: Final = _all(
    "not no never none nobody nothing nowhere neither nor without cannot except unless hardly barely lack lacks "
    "lacking fail fails failed nicht kein keine keinen nie niemals ohne ne pas jamais sans aucun nunca sin ningún non "
    "senza mai não nem sem geen niet nooit inte ingen ikke не нет без 不 没 没有 無 ない"
)
NUMBERS: Final = {
    word: str(value)
    for value, word in enumerate(
        (
            "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
            "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
        )
    )
} | {
    "thirty": "30", "forty": "40", "fifty": "50", "sixty": "60", "seventy": "70", "eighty": "80", "ninety": "90",
    "hundred": "100", "thousand": "1000", "million": "1e6", "billion": "1e9", "first": "#1", "second": "#2",
    "third": "#3", "fourth": "#4", "fifth": "#5", "half": "1/2", "quarter": "1/4", "double": "x2", "twice": "x2",
    "triple": "x3", "thrice": "x3", "once": "x1", "dozen": "12", "single": "1", "pair": "2",
}  # fmt: skip
UNITS: Final = _all(
    "mm cm m km in ft feet foot inch inches mi mile miles yd yard yards mg g kg t lb lbs pound pounds oz ounce ounces "
    "ml l liter liters litre litres gal gallon gallons ms s sec second seconds min minute minutes h hr hrs hour hours day "
    "days week weeks month months year years decade decades century centuries b kb mb gb tb kib mib gib tib bit bits byte "
    "bytes hz khz mhz ghz w kw mw v a ma c f k celsius fahrenheit kelvin degree degrees percent usd eur gbp jpy chf dollar "
    "dollars euro euros yen cent cents kmh mph am pm utc gmt"
)
#: Which way, and how: their order counts.
RELATIONS: Final = _all(
    "to from into onto than by for of with without before after since until over under above below between against via "
    "as versus vs instead if unless because while when whenever then or and but"
)
#: What is asked for, how much of it, by whom, when.
SCOPES: Final = _all(
    "what who whom whose which when where why how should must may might shall can could would will was were did had has "
    "have been being all any some every each both either most many much few only just exactly least more less fewer "
    "always often sometimes rarely i my mine myself we our ours us you your yours he his him she her hers they their "
    "theirs them it its this that these those"
)
OPPOSITES: Final = (
    "increase decrease", "enable disable", "buy sell", "import export", "before after", "more less", "more fewer",
    "maximum minimum", "max min", "maximize minimize", "start stop", "begin end", "open close", "left right", "up down",
    "encode decode", "encrypt decrypt", "compress decompress", "first last", "hot cold", "above below", "legal illegal",
    "install uninstall", "add remove", "accept reject", "true false", "best worst", "better worse", "pros cons",
    "advantages disadvantages", "advantage disadvantage", "lend borrow", "employer employee", "teach learn", "win lose",
    "upload download", "push pull", "client server", "source target", "input output", "sender receiver", "north south",
    "east west", "high low", "higher lower", "highest lowest", "largest smallest", "big small", "long short",
    "longest shortest", "fast slow", "fastest slowest", "old new", "oldest newest", "early late", "cheap expensive",
    "cheapest expensive", "safe dangerous", "safe unsafe", "possible impossible", "active inactive", "positive negative",
    "ascending descending", "inside outside", "public private", "parent child", "male female", "husband wife",
    "mother father", "brother sister", "son daughter", "ancestor descendant", "cause effect", "allow deny", "allow block",
    "include exclude", "love hate", "like dislike", "alive dead", "full empty", "hard easy", "hard soft", "strong weak",
    "rich poor", "asymptomatic symptomatic", "hyper hypo", "credit debit", "asset liability", "plaintiff defendant",
    "attack defend", "lossless lossy", "sync async", "synchronous asynchronous", "serialize deserialize", "mount unmount",
    "lock unlock", "subscribe unsubscribe", "follow unfollow", "freeze thaw", "melt freeze", "gain loss", "profit loss",
    "arrival departure", "arrive depart", "enter exit", "day night", "summer winter", "today tomorrow", "today yesterday",
)  # fmt: skip
CONTRACTIONS: Final = {
    "won't": "will not", "can't": "can not", "cannot": "can not", "shan't": "shall not", "let's": "let us",
    "i'm": "i am", "what's": "what is", "who's": "who is", "where's": "where is", "how's": "how is",
    "that's": "that is", "it's": "it is", "there's": "there is", "here's": "here is", "when's": "when is",
    "why's": "why is",
}  # fmt: skip
ENDINGS: Final = (
    ("n't", " not"),
    ("'re", " are"),
    ("'ll", " will"),
    ("'ve", " have"),
    ("'d", " would"),
)
