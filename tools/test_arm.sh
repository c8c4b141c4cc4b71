#!/usr/bin/env bash
# Builds the tests of the CPU kernels for AArch64 and runs them under qemu: as a Cortex-A72, which has no dot products
# of bytes, and as a processor that has every extension.
#
#   tools/test_arm.sh        needs aarch64-linux-gnu-g++ and qemu-aarch64-static (Debian: g++-aarch64-linux-gnu
#                            qemu-user-static); exits 1 if a test fails, 77 if one of the two programs is missing
set -u
cd "$(dirname "$0")/.."
for program in aarch64-linux-gnu-g++ qemu-aarch64-static; do
    command -v $program >/dev/null && continue
    echo "tools/test_arm.sh: $program was not found; install g++-aarch64-linux-gnu and qemu-user-static"
    exit 77
done
for folder in /usr/include /usr/local/include; do
    [ -f $folder/doctest/doctest.h ] && doctest=$folder/doctest
done
out=build/arm
mkdir -p $out/include && ln -sfn "${doctest:?was not found}" $out/include/doctest || exit 1
# The link keeps the other headers of this machine out of the compiler's reach.

compile() {
    $(command -v ccache) aarch64-linux-gnu-g++ -std=c++17 -O2 -Wall -Wextra -Werror -DAUSPEX_NO_VULKAN \
        -DAUSPEX_REPO_DIR="\"$PWD\"" -Isrc -I. -isystem $out/include -c "$1" -o "$out/$(basename "$1" .cpp).o"
}
rm -f $out/*.o
pids=()
for source in src/auspex.cpp tests/{main,support,encode,test_matmul,test_ops,test_number,test_pool}.cpp; do
    compile "$source" &
    pids+=($!)
    [ ${#pids[@]} -ge "$(nproc)" ] && { wait "${pids[0]}" || exit 1; pids=("${pids[@]:1}"); }
done
for pid in "${pids[@]}"; do wait "$pid" || exit 1; done
aarch64-linux-gnu-g++ -static -pthread $out/*.o -o $out/tests || exit 1
for cpu in cortex-a72 max; do
    echo "== $cpu"
    qemu-aarch64-static -cpu $cpu $out/tests || exit 1
done
