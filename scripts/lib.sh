# Shared by the scripts; not run by itself. Sets up a bare Debian 12 machine: what is there is left alone,
# what is missing is named and installed.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C.UTF-8

# What the build needs, and the unmodified programs that run on the result.
BUILD_PACKAGES=(build-essential pkg-config libdpdk-dev clang libclang-dev)
PROGRAM_PACKAGES=(ibverbs-utils ibverbs-providers perftest libibverbs-dev)
# rust-version of Cargo.toml.
RUST_MINIMUM=1.85

if [ -t 1 ]; then bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' plain=$'\e[0m'; else bold= dim= red= plain=; fi

say() { printf '%s\n' "$*"; }
heading() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
warn() { printf '%s%s%s\n' "$red" "$*" "$plain" >&2; }
die() { warn "$*"; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo -- "$@"
    else
        die "this needs root and there is no sudo; run as root: $*"
    fi
}

# need PACKAGE...: installs those that are not installed.
need() {
    local package missing=()
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "not a Debian system; install what these packages hold: ${missing[*]}"
    say "installing Debian packages: ${missing[*]}"
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
    as_root "${apt[@]}" update
    as_root "${apt[@]}" install --no-install-recommends -y "${missing[@]}" >/dev/null
}

# rdma-core's Python tests are in the documentation of a package, and small images leave documentation out.
need_pyverbs() {
    local tests=/usr/share/doc/rdma-core/tests
    need python3-pyverbs
    [ -e "$tests/run_tests.py" ] && return 0
    say "installing $tests, which this system's dpkg leaves out"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
        -o "DPkg::Options::=--path-include=$tests/*" install --reinstall -y python3-pyverbs >/dev/null
}

rust_is_recent() {
    local version
    command -v cargo >/dev/null && command -v rustc >/dev/null || return 1
    version=$(rustc --version 2>/dev/null | cut -d' ' -f2) || return 1
    [ "$(printf '%s\n' "$RUST_MINIMUM" "${version%%-*}" | sort -V | head -n 1)" = "$RUST_MINIMUM" ]
}

# The Rust that is there, if it is recent enough; else Debian's newer one.
need_rust() {
    [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ] && PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
    rust_is_recent && return 0
    say "no Rust $RUST_MINIMUM or newer here; taking Debian's rustc-web and cargo-web"
    need rustc-web cargo-web
    hash -r
    rust_is_recent || PATH=/usr/bin:$PATH
    hash -r
    rust_is_recent || die "rustc is $(rustc --version 2>&1), Rust $RUST_MINIMUM is needed"
}

set_up() {
    need "${BUILD_PACKAGES[@]}" "${PROGRAM_PACKAGES[@]}" "$@"
    need_rust
    say "${dim}$(rustc --version); DPDK $(pkg-config --modversion libdpdk);" \
        "$(nproc) CPUs; $(uname -r)${plain}"
}

# Where cargo puts what it builds.
target_dir() { printf '%s' "${CARGO_TARGET_DIR:-$PWD/target}"; }

# listening PORT: does somebody listen on that TCP port? (State 0A, RFC 793 LISTEN as the kernel prints it.)
listening() {
    local hex
    hex=$(printf '%04X' "$1")
    grep -qsE "^ *[0-9]+: [0-9A-F]+:$hex [0-9A-F]+:0000 0A " /proc/net/tcp /proc/net/tcp6
}

# wait_until SECONDS COMMAND...: until the command succeeds.
wait_until() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.05
    done
}

# Processes that this script started; stop_all ends them and waits for them.
started=()
stop_all() {
    local pid
    for pid in ${started[@]+"${started[@]}"}; do kill "$pid" 2>/dev/null || true; done
    for pid in ${started[@]+"${started[@]}"}; do wait "$pid" 2>/dev/null || true; done
    started=()
}
