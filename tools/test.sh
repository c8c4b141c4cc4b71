#!/usr/bin/env bash
# Builds and runs every test. Each step's output is kept under build/test-logs/; a failed step shows
# its end here. The last line says: N passed, N failed (ctest entries and single steps together).
#
#   tools/test.sh            everything
#   tools/test.sh quick      the release build and its tests only
set -u
cd "$(dirname "$0")/.."
. tools/setup.sh
need_packages "${packages_to_test[@]}"

jobs=$(nproc)
logs=build/test-logs
mkdir -p "$logs"
passed=0 failed=0
single=single_include
demo=examples/models/auspex-demo.gguf
warnings="-Wall -Wextra -Wpedantic -Wconversion -Werror"
cache=$(command -v ccache || true)

tell() { printf '%-58s %s\n' "$1" "$2"; }

# step NAME COMMAND...: one thing that passes or fails.
step() {
    local name=$1 log start=$SECONDS
    shift
    log=$logs/$(echo "$name" | tr -c 'a-zA-Z0-9\n' '-').log
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        tell "$name" "ok, $((SECONDS - start)) s"
    else
        failed=$((failed + 1))
        tell "$name" "FAILED, $((SECONDS - start)) s: $log"
        tail -n 40 "$log" | sed 's/^/    /'
        return 1
    fi
}

# suite NAME FOLDER [ctest options]: every ctest entry counts.
suite() {
    local name=$1 folder=$2 log start=$SECONDS ran bad
    shift 2
    log=$logs/$(echo "$name" | tr -c 'a-zA-Z0-9\n' '-').log
    (cd "$folder" && ctest --output-on-failure --no-tests=error -j "$jobs" "$@") >"$log" 2>&1
    local code=$?
    ran=$(sed -n 's/.*tests failed out of \([0-9]*\).*/\1/p' "$log" | tail -n 1)
    bad=$(sed -n 's/.*, \([0-9]*\) tests failed out of .*/\1/p' "$log" | tail -n 1)
    if [ "$code" -eq 0 ]; then
        passed=$((passed + ran))
        tell "$name" "$ran ok, $((SECONDS - start)) s"
    else
        [ -n "$ran" ] || { ran=1 bad=1; }
        passed=$((passed + ran - bad)) failed=$((failed + bad))
        tell "$name" "$bad of $ran FAILED, $((SECONDS - start)) s: $log"
        grep -E 'ERROR:|FAILED|\*\*\*|^  (CHECK|REQUIRE)|values:|Error' "$log" | tail -n 40 | sed 's/^/    /'
        return 1
    fi
}

# configured FOLDER OPTIONS...: configures and builds.
configured() {
    local folder=$1
    shift
    configure "$folder" "$@" && cmake --build "$folder" -j "$jobs"
}

finish() {
    tell "all" "$SECONDS s"
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    exit
}

# ---------------------------------------------------------------------------- the release build

step "single header is fresh" python3 amalgamate.py --check
[ -f tools/make_shaders.py ] && step "shader blob is fresh" python3 tools/make_shaders.py --check
step "build: gcc, release, also on the single header" configured build \
    -DCMAKE_BUILD_TYPE=Release -DAUSPEX_WERROR=ON -DAUSPEX_TESTS=ON -DAUSPEX_TEST_SINGLE_HEADER=ON &&
    suite "tests: gcc, release" build -E "^unit\.(vulkan_|drive)|^single\.(drive|pair|reference|window|vulkan_(families|kv|state))"  # the GPU's run below, under validation; the longest not twice
[ "${1:-}" = quick ] && finish

# ------------------------------------------------------------------- the single header by itself

# minimal: the README's program, built by one command from single_include/ and no other file.
minimal() {
    g++ -std=c++17 -O2 -DAUSPEX_NO_VULKAN -I $single examples/minimal/main.cpp -o build/minimal -pthread &&
        build/minimal $demo "2026-03-14 08:00 Pump-3" | tee /dev/stderr | grep -q .
}
step "minimal example by one g++ command" minimal

no_skin="-fno-exceptions -fno-rtti"
step "no exceptions, no RTTI: gcc" $cache g++ -std=c++17 $warnings $no_skin -O0 -c src/auspex.cpp -o build/no-skin.o
step "no exceptions, no RTTI: clang" $cache clang++ -std=c++17 $warnings $no_skin -O0 -c src/auspex.cpp -o build/no-skin-clang.o
step "no SIMD" g++ -std=c++17 $warnings -DAUSPEX_NO_SIMD -fsyntax-only src/auspex.cpp
step "no Vulkan" g++ -std=c++17 $warnings -DAUSPEX_NO_VULKAN -fsyntax-only src/auspex.cpp
step "C++20: gcc" g++ -std=c++20 $warnings -fsyntax-only src/auspex.cpp
step "C++20: clang" clang++ -std=c++20 $warnings -fsyntax-only src/auspex.cpp

# two_units: both include the header, one plainly; the other defines the implementation after a plain include.
two_units() {
    local unit
    for unit in user implementation; do
        $cache g++ -std=c++17 $warnings -O0 -DAUSPEX_NO_VULKAN -I $single -c tests/two_units/$unit.cpp -o build/two-$unit.o || return 1
    done
    g++ build/two-user.o build/two-implementation.o -o build/two-units -pthread && build/two-units
}
step "two translation units" two_units

for cross in aarch64-linux-gnu-g++ x86_64-w64-mingw32-g++; do
    command -v $cross >/dev/null && step "syntax: $cross" $cross -std=c++17 -Wall -Wextra -DAUSPEX_NO_VULKAN -fsyntax-only src/auspex.cpp
done

# ------------------------------------------------------------------------------- static binary

static_binary() {
    configured build-static -DCMAKE_BUILD_TYPE=Release -DAUSPEX_STATIC=ON -DAUSPEX_NO_VULKAN=ON -DAUSPEX_UNITY=ON -DAUSPEX_TESTS=OFF || return 1
    if ldd build-static/auspex 2>/dev/null | grep '=>'; then
        echo "expected a static binary, found the libraries above"
        return 1
    fi
    build-static/auspex run -m $demo -p "2026-03-14" -n 4
}
step "static binary" static_binary

# ---------------------------------------------------------------------------- sanitizers, fuzzing

step "build: clang, address and undefined behaviour" configured build-asan -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=None \
    -DCMAKE_CXX_FLAGS=-O1 -DAUSPEX_SANITIZE=ON -DAUSPEX_WERROR=ON -DAUSPEX_UNITY=ON -DAUSPEX_NO_VULKAN=ON -DAUSPEX_TESTS=ON -DAUSPEX_FUZZ=ON &&
    suite "tests: clang, address and undefined behaviour" build-asan

# A minute of fuzzing in all, from the seeds under tests/seeds/NAME where there are any.
targets=(tests/fuzz_*.cpp)
fuzz() {
    local name=$1 seconds=$2 seeds=()
    [ -d "tests/seeds/$name" ] && seeds=("tests/seeds/$name")
    mkdir -p "build-asan/found/$name"
    "build-asan/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix="build-asan/found/$name-" "build-asan/found/$name" "${seeds[@]}"
}
if [ -f "${targets[0]}" ]; then
    for target in "${targets[@]}"; do
        name=$(basename "$target" .cpp)
        step "fuzzing: $name" fuzz "$name" $((60 / ${#targets[@]}))
    done
fi

# -------------------------------------------------------------------------------------- Vulkan

# On the software device that Debian brings, under the validation layers; their word is law.
vulkan_tests() {
    local icd=(/usr/share/vulkan/icd.d/lvp_icd.*.json)
    VK_ICD_FILENAMES=${icd[0]} VK_DRIVER_FILES=${icd[0]} VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation \
        VK_LAYER_ENABLES=VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT \
        build/auspex_tests --source-file='*/test_vulkan*,*/test_device_loop*' >"$logs/vulkan-validation.txt" 2>&1
    local code=$?
    tail -n 20 "$logs/vulkan-validation.txt"
    ! grep -E 'Validation (Error|Warning)|VUID-|SYNC-HAZARD' "$logs/vulkan-validation.txt" && [ $code -eq 0 ]
}
if ls tests/test_vulkan*.cpp >/dev/null 2>&1; then
    step "Vulkan on a software device, validated" vulkan_tests
fi

finish
