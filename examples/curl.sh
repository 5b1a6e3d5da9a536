#!/bin/sh
# Ask the server with curl, at once and streamed.
# Run it:  .venv/bin/headrace serve     and, beside it,     sh examples/curl.sh
set -eu
url=${HEADRACE_URL:-http://127.0.0.1:8000}

curl -sS --fail-with-body "$url/v1/chat/completions" -H 'Content-Type: application/json' -d '{
  "messages": [{"role": "user", "content": "What is a headrace?"}],
  "max_tokens": 32
}'
echo
curl -sSN --fail-with-body "$url/v1/completions" -H 'Content-Type: application/json' -d '{
  "prompt": "Once upon a time", "max_tokens": 16, "stream": true
}'
