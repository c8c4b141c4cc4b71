# Sourced by the other scripts: says which Debian packages are missing and installs them.
#
#   need_packages NAME...    names the missing ones and installs them without asking, as root or through sudo;
#                            elsewhere prints the command to run and exits with 1

need_packages() {
    if ! command -v dpkg-query >/dev/null 2>&1; then
        echo "setup: this is not Debian; install what these packages contain: $*" >&2
        return 0
    fi
    local missing=() name
    for name in "$@"; do
        dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q ' installed$' || missing+=("$name")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
            as_root=(sudo)
        else
            echo "setup: these packages are missing and this user may not install them. Run:" >&2
            echo "    sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
            exit 1
        fi
    fi
    echo "setup: about to install these Debian packages with apt-get:" >&2
    printf '    %s\n' "${missing[@]}" >&2
    local log
    log=$(mktemp)
    if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
        echo "setup: apt-get could not install ${missing[*]}; the end of its output:" >&2
        tail -n 20 "$log" >&2
        rm -f "$log"
        exit 1
    fi
    rm -f "$log"
}

# configure FOLDER OPTIONS...: with Ninja, or with whatever the folder was made with before.
configure() {
    local folder=$1 generator=()
    shift
    [ -f "$folder/CMakeCache.txt" ] || generator=(-G Ninja)
    cmake -S . -B "$folder" "${generator[@]}" "$@"
}

packages_to_build=(g++ cmake ninja-build python3 libcli11-dev nlohmann-json3-dev libstb-dev libcpp-httplib-dev
    libvulkan-dev libvulkan-volk-dev)
packages_to_test=("${packages_to_build[@]}" ccache clang clang-format libclang-rt-14-dev universal-ctags doctest-dev
    meson pkgconf glslc spirv-tools libvulkan1 mesa-vulkan-drivers vulkan-validationlayers
    luajit default-jdk-headless  # bindings of the C interface; C# and Rust are tried where mcs and rustc are installed
    chromium)  # for the page of the server; its package chromium-common has SwiftShader
# Other platforms, where this machine can run their programs: ARM with 64 and 32 bits, Windows.
if [ "$(uname -m)" = x86_64 ]; then
    packages_to_test+=(g++-aarch64-linux-gnu g++-arm-linux-gnueabihf qemu-user-static g++-mingw-w64-x86-64-posix wine64)
fi

