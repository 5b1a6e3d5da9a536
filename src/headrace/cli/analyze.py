"""`headrace analyze URL`: what bounds a server's latency, and what would help most."""

import sys
from collections.abc import Sequence

import msgspec

from headrace.bench.analyze.options import AnalyzeOptions
from headrace.cli.flags import Parser, add_config, config_values
from headrace.config import env
from headrace.config.load import load
from headrace.config.secret import Secret
from headrace.core.clock import SystemClock


def main(argv: Sequence[str]) -> int:
    """Watch, probe and tell. 1 if nothing could be said."""
    arguments = make_parser(argv).parse(argv)
    url = arguments.pop("url")
    flags = config_values(AnalyzeOptions, arguments)
    options = load(AnalyzeOptions, environment={}, flags=flags).config
    key = env.get("OPENAI_API_KEY")
    if options.api_key is None and key is not None:
        options = msgspec.structs.replace(options, api_key=Secret(key))
    # Imported now, so that help does not wait for it.
    from headrace.bench.analyze.run import observe, text_of
    from headrace.bench.analyze.verdict import analyze

    seen = observe(url, options, SystemClock(), lambda text: print(text, file=sys.stderr))
    analysis = analyze(seen)
    if options.json:
        report = {"observations": seen, "analysis": analysis}
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        print(text_of(analysis))
    return 1 if analysis.bound is None else 0


def make_parser(argv: Sequence[str]) -> Parser:
    """The parser of the address and the flags."""
    parser = Parser(
        "headrace analyze", "Say what bounds a server's latency, and what would help most.", "URL"
    )
    parser.add_argument(
        "url", metavar="URL", help="a headrace server or gateway, or any OpenAI-compatible server"
    )
    add_config(parser, AnalyzeOptions, argv)
    return parser
