"""Structured output: grammars are checked apart, compiled once, and matched token by token.

    checks.py        a pool of small processes that try grammars out, with a time limit (HTTP process)
    check_process.py what runs in them
    compiler.py      grammar → something that can be matched, behind a cache (engine process)
    matcher.py       one sequence's place in its grammar
    tags.py          free text with constrained pieces in it, as a grammar

The work is done by llguidance (Earley parser over derivatives of regular expressions, in Rust). It is
imported when the first grammar is compiled, and never in the HTTP process.
"""
