#!/usr/bin/env bash
# Builds and runs every test. Each step's output is kept under build/test-logs/; a failed step shows its end here.
#
#   tools/test.sh            what every change must pass: 15 to 35 minutes on two cores, nothing cached
#   tools/test.sh quick      the release build and its tests only
#   tools/test.sh deep       the same tests at their long lengths, before a release: full sweeps, long drafting and sync
#                            scripts, ten minutes of fuzzing, every test file under sanitizers, the whole suite on the
#                            single header, the library, the command line and the static binary compiled file by file
#
# Vulkan tests run on the software device that Debian brings, under the validation layers with synchronization
# validation. Choose another device with VK_ICD_FILENAMES; with AUSPEX_REQUIRE_GPU=1 the system's own drivers are used
# and a test that is skipped for want of a device fails.
#
# The last lines name the skipped tests and why. The very last one reads: N passed, N failed, N skipped.
set -u
cd "$(dirname "$0")/.."
. tools/setup.sh
mode=${1:-all}
case $mode in all | quick | deep) ;; *)
    echo "tools/test.sh: expected quick, deep or nothing, found '$mode'" >&2
    exit 2
    ;;
esac
need_packages "${packages_to_test[@]}"

n_job=$(nproc)
logs=build/test-logs
rm -rf "$logs" && mkdir -p "$logs" || exit 1
steps=$logs/steps.txt suites=()
: >"$steps"
single=single_include
demo=examples/models/auspex-demo.gguf
warnings="-Wall -Wextra -Wpedantic -Wconversion -Werror"
cache=$(command -v ccache || true)
export CCACHE_SLOPPINESS=pch_defines,time_macros  # or it leaves out what uses a precompiled header
ctest_options=(-V --no-tests=error -j "$((n_job + 1))")  # one more than cores: some entries wait for a client
fuzz_seconds=5 grammar_seconds=20 optimised=-O0 unity=ON single_suite=OFF minimal_compiler=clang++
# Under sanitizers: what reads the input of others, owns memory or must survive failures, and the kernels but those of
# AVX-512. Deep adds the other files and most of the command line; the suite "long" never runs under them.
sanitized="base;bulk_copy;cancel;capi;capi_chat;capi_refused;capi_sampling;chat;constraint;cycle_cost;draft_options"
sanitized+=";embed;fault;file_info;fork;gguf;grammar;huge_pages;inflate;interface;jinja;jinja_limits;json;logits;lookup"
sanitized+=";matcher;matmul;memory_plan;model;move;number;ops;packed_file;pair;part_log;plan;pool;prefix_reason"
sanitized+=";prefix_tree;reply_cut;reply_states;reply_stream;run_tree;sampler;schema;schema_limits;session;session_file"
sanitized+=";session_file_bad;snapshot;state;sync_scripts;text_drafts;thread_count;token;token_limits;tool_calls"
sanitize_options=(-DAUSPEX_CLI=OFF -DAUSPEX_NO_AVX512=ON "-DAUSPEX_TEST_FILES=$sanitized")
if [ "$mode" = deep ]; then
    export AUSPEX_TEST_DEEP=1
    ctest_options+=(-C deep)
    fuzz_seconds=200 grammar_seconds=200 optimised=-O2 unity=OFF single_suite=ON minimal_compiler=g++
    sanitize_options=(-DAUSPEX_CLI=ON -DAUSPEX_NO_AVX512=OFF -DAUSPEX_TEST_FILES=)  # a build remembers what it was given
fi

# run_step NAME COMMAND...: runs one thing that passes or fails, and prints a line about it.
run_step() {
    local name=$1 start=$SECONDS log verdict=passed
    shift
    log=$logs/$(echo "$name" | tr -c 'a-zA-Z0-9\n' '-').log
    "$@" >"$log" 2>&1 || verdict=failed
    echo "step: $verdict: $name" >>"$steps"
    {
        printf '%-62s %s, %d s\n' "$name" "$verdict" "$((SECONDS - start))"
        [ $verdict = passed ] || tail -n 40 "$log" | sed 's/^/    /'
    } | cat
    [ $verdict = passed ]
}

# queue_step NAME COMMAND...: the same beside others, as many at a time as there are cores. wait_steps waits for all.
queue_step() {
    while [ "$(jobs -rp | wc -l)" -ge "$n_job" ]; do wait -n; done
    run_step "$@" &
}
wait_steps() { wait; }

# suite NAME FOLDER [ctest options]: every test case of every ctest entry counts.
suite() {
    local name=$1 folder=$2 start=$SECONDS log code
    shift 2
    log=$PWD/$logs/$(echo "$name" | tr -c 'a-zA-Z0-9\n' '-').log
    suites+=("$log")
    (cd "$folder" && ctest "${ctest_options[@]}" "$@") >"$log" 2>&1
    code=$?
    printf '%-62s %s, %d s\n' "$name" "$([ $code -eq 0 ] && echo passed || echo "failed: $log")" "$((SECONDS - start))"
    local signs='\*\*\*|ERROR:|FAILED|(CHECK|REQUIRE)(_[A-Z]+)?\(|values:|Error|VUID'
    [ $code -eq 0 ] || grep -E "$signs" "$log" | tail -n 60 | sed 's/^/    /'
}

# build FOLDER OPTIONS...: configures and builds.
build() {
    local folder=$1
    shift
    configure "$folder" "$@" && cmake --build "$folder" -j "$n_job"
}

finish() {
    wait_steps
    echo "all: $SECONDS s"
    python3 tools/count_tests.py "$steps" "${suites[@]}"
    exit
}

# ---------------------------------------------------------------------------- style, generated files

[ -f tools/check_style.py ] && queue_step "style: words, lengths, format" python3 tools/check_style.py
queue_step "generated: single_include/auspex.hpp" python3 amalgamate.py --check
queue_step "generated: src/machine/vulkan/spirv.inc" python3 tools/make_shaders.py --check

# ------------------------------------------------------------------------ the release build, its tests

# The Vulkan tests run here and nowhere else, under validation.
if [ -z "${VK_ICD_FILENAMES:-}" ] && [ "${AUSPEX_REQUIRE_GPU:-0}" = 0 ]; then
    software=(/usr/share/vulkan/icd.d/lvp_icd.*.json)
    export VK_ICD_FILENAMES=${software[0]} VK_DRIVER_FILES=${software[0]}
fi
validation="VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation"
if grep -qs '"api_version": *"1\.[4-9]' /usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json; then
    validation+=";VK_LAYER_VALIDATE_SYNC=1"  # for the older name it has a warning, which fails a test
else
    validation+=";VK_LAYER_ENABLES=VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT"
fi
run_step "build: gcc, release" build build -DCMAKE_BUILD_TYPE=Release -DAUSPEX_WERROR=ON -DAUSPEX_TESTS=ON \
    -DAUSPEX_UNITY_CLI=$unity -DAUSPEX_UNITY_GROUPS=$unity -DAUSPEX_TEST_SINGLE_HEADER=$single_suite \
    "-DAUSPEX_TEST_VULKAN_ENVIRONMENT=$validation" &&
    suite "tests: gcc, release, Vulkan validated" build
wait_steps
grep -h -A 10 'longest functions' "$logs"/style*.log
[ "$mode" = quick ] && finish

# ----------------------------- the sanitizer build; beside it the single header, other compilers, static

queue_step "build: clang, address and undefined behaviour" build build-asan -DCMAKE_CXX_COMPILER=clang++ \
    -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 -DAUSPEX_WERROR=ON -DAUSPEX_UNITY_CLI=ON -DAUSPEX_UNITY_GROUPS=ON \
    -DAUSPEX_NO_VULKAN=ON -DAUSPEX_BENCH=OFF -DAUSPEX_SERVER=OFF -DAUSPEX_TESTS=ON -DAUSPEX_FUZZ=ON \
    "${sanitize_options[@]}"

# minimal: the README's program, built by one command from single_include/ and no other file; as C++23, without
# exceptions and RTTI, which the library needs nowhere. Clang takes half as long as GCC.
minimal() {
    $minimal_compiler -std=c++2b -fno-exceptions -fno-rtti $warnings $optimised -DAUSPEX_NO_VULKAN -I $single \
        examples/minimal/main.cpp -o build/minimal -pthread &&
        build/minimal $demo "2026-03-14 08:00 Pump-3" | tee /dev/stderr | grep -q .
}
# two_versions: one program holds the library twice, once as another version; no function is in both. The other version
# is the header in several units: all include it plainly, one by the application, the others then define a part of the
# implementation each. Without SIMD and Vulkan, so that this compiles too.
two_versions() {
    local other=build/two-versions number='9.8.7' part
    mkdir -p $other && sed -e "s/^#define AUSPEX_VERSION_NAMESPACE .*/#define AUSPEX_VERSION_NAMESPACE v${number//./_}/" \
        -e "s/^#define AUSPEX_VERSION \".*/#define AUSPEX_VERSION \"$number\"/" $single/auspex.hpp >$other/auspex.hpp &&
        cp $single/auspex.h $other/ || return 1
    local options="-std=c++17 $warnings -O0 -DAUSPEX_NO_VULKAN -DAUSPEX_NO_SIMD"
    local compile="$cache g++ $options"
    $compile -I $other -c tests/two_units/user.cpp -o $other/user.o || return 1
    # By the other compiler, as a library from elsewhere may be; Clang takes half as long as GCC, too.
    for part in 1 2 3 4 5; do
        $cache clang++ $options -DAUSPEX_IMPLEMENTATION_PART=$part -I $other -c tests/two_units/implementation.cpp \
            -o $other/part-$part.o || return 1
    done
    ld -r $other/part-?.o -o $other/implementation.o || return 1
    g++ $other/user.o $other/implementation.o -o $other/units -pthread && $other/units || return 1
    $compile -I $single -c tests/two_versions/part.cpp -DPART=first_version -o $other/first.o &&
        $compile -I $other -c tests/two_versions/part.cpp -DPART=second_version -o $other/second.o || return 1
    names() { nm -C --defined-only "$@" 2>/dev/null | cut -c 20- | grep '^auspex::' | sort -u; }
    names build/libauspex.a >$other/first.txt
    names $other/implementation.o >$other/second.txt
    if comm -12 $other/first.txt $other/second.txt | grep . || ! grep -q v9_8_7 $other/second.txt; then
        echo "expected every function of auspex in the namespace of its version, found those above outside"
        return 1
    fi
    # The functions of the C interface carry no version: an application has one of them.
    objcopy --wildcard --localize-symbol='auspex_*' $other/implementation.o $other/cpp.o || return 1
    g++ tests/two_versions/main.cpp $other/{first,second,cpp}.o build/libauspex.a -o $other/both -pthread \
        -ldl && $other/both $demo
}
static_binary() {  # by Clang, which takes half as long as GCC
    build build-static -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=$optimised \
        -DAUSPEX_STATIC=ON -DAUSPEX_NO_VULKAN=ON -DAUSPEX_NO_SIMD=ON -DAUSPEX_UNITY=ON -DAUSPEX_UNITY_CLI=$unity -DAUSPEX_BENCH=OFF -DAUSPEX_TESTS=OFF || return 1
    if ldd build-static/auspex 2>/dev/null | grep '=>'; then
        echo "expected a static binary, found the libraries above"
        return 1
    fi
    build-static/auspex run -m $demo -p "2026-03-14" -n 4
}
queue_step "minimal example by one command" minimal
queue_step "static binary" static_binary
queue_step "two translation units, two versions in one program" two_versions
if [ "$mode" = deep ] && command -v qemu-aarch64-static >/dev/null; then
    queue_step "kernel tests on ARM processors, under qemu" tools/test_arm.sh
fi

wait_steps

# ------------------------------------------------------------------------- sanitizer tests, fuzzing

grep -q "^step: passed: build: clang, address" "$steps" || finish
suite "tests: clang, address and undefined behaviour" build-asan \
    -E '^(cli_(draft|session|streams|replay)|cli_memory.Quality|amalgamate|make_shaders|packages|platforms|readme)\.?'

# fuzz NAME SECONDS [PART]: from the seeds under tests/seeds/NAME where there are any, and from what earlier runs found.
# Each part has random numbers and findings of its own.
fuzz() {
    local name=$1 part=${3:-1} seeds=()
    [ -d "tests/seeds/$name" ] && seeds=("tests/seeds/$name")
    mkdir -p "build-asan/found/$name-$part"
    "build-asan/$name" -max_total_time="$2" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix="build-asan/found/$name-$part-" "build-asan/found/$name-$part" "${seeds[@]}"
}
# Grammars take longest: GBNF, JSON schemas and regular expressions share a target. Their first part runs beside the
# other targets and the start of the second, so that both cores end together.
first_part=$(((grammar_seconds + 3 * fuzz_seconds) / 2))
[ "$first_part" -lt "$grammar_seconds" ] || first_part=$((grammar_seconds / 2))
queue_step "fuzzing: fuzz_grammar, $first_part s" fuzz fuzz_grammar "$first_part" 1
for target in tests/fuzz_*.cpp; do
    name=$(basename "$target" .cpp)
    [ "$name" = fuzz_grammar ] || queue_step "fuzzing: $name, $fuzz_seconds s" fuzz "$name" "$fuzz_seconds"
done
rest=$((grammar_seconds - first_part))
queue_step "fuzzing: fuzz_grammar, another $rest s" fuzz fuzz_grammar "$rest" 2

finish
