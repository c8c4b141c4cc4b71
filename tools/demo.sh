#!/usr/bin/env bash
# From a fresh clone to text: builds a release in build/ and continues a prompt with the demo model.
#
#   tools/demo.sh [options of `auspex run`]      for example: tools/demo.sh --device cpu -n 200
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/setup.sh
need_packages "${packages_to_build[@]}"

mkdir -p build
log=build/demo-build.log
if ! { configure build -DCMAKE_BUILD_TYPE=Release -DAUSPEX_TESTS=OFF &&
    cmake --build build --target auspex; } >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    echo "demo: the build failed; all of it is in $log" >&2
    exit 1
fi

prompt='2026-03-14 08:00 Pump-3 status=nominal temp=61C vibration=0.2 note: bearing inspected, no further action
2026-03-14 08:15 Pump-3 status=nominal temp=61C vibration=0.2 note: bearing inspected, no further action
2026-03-14 08:30 Pump-3'
text=yes tokens=yes
for word in "$@"; do  # an option may be given once
    case $word in
    -p* | --prompt* | -f* | --file*) text= ;;
    -n* | --tokens*) tokens= ;;
    esac
done
set -- -v "$@"
[ -z "$tokens" ] || set -- -n 96 "$@"
if [ -n "$text" ]; then
    printf '%s' "$prompt"
    set -- -p "$prompt" "$@"
fi
build/auspex run "$@"
