#!/bin/sh
# Measure a running server: 1 and 4 clients, then 2 requests a second, with a goal for latency.
# Run it:  .venv/bin/headrace serve     and, beside it,     sh examples/load_test.sh
set -eu
url=${HEADRACE_URL:-http://127.0.0.1:8000}
headrace=${HEADRACE_BIN:-.venv/bin/headrace}

$headrace bench --url "$url" --concurrency 1,4 --num-requests 8 --input-words 64 --output-tokens 16
$headrace bench --url "$url" --rate 2 --num-requests 6 --input-words 64 --output-tokens 16 \
  --slo ttft=1s,itl=100ms
