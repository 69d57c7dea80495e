# Shared by the benchmarks of whole programs; not run by itself. In flow runs of programs; out flow samples, one JSON object a line
# in $samples, a table of medians, and a file of results.

. "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

bin=$(realpath -m "${BIN:-$(target_dir)/release}")
roceline=$bin/roceline
results=$PWD/benches/results
work=$(mktemp -d)
samples=$work/samples
: >"$samples"
socket=$work/roceline.sock
export ROCELINE_SOCKET=$socket

for file in "$roceline" "$bin/libroceline_shim.so"; do
    [ -e "$file" ] || die "no $file: cargo build --release --workspace"
done
mkdir -p "$results"

# sample NAME UNIT VALUE: notes one, unless the program gave no figure.
sample() {
    case $3 in '' | *[!0-9.e+-]*) warn "no figure of $1 in round $round: '$3'"; return 0 ;; esac
    printf '{"name":"%s","unit":"%s","value":%s,"round":%s}\n' "$1" "$2" "$3" "$round" >>"$samples"
}

# The two CPUs that matter: that of the programs and that of the daemon.
last=$(($(nproc) - 1))
between=0,$last
# The machine, as `roceline bench machine` sees it from these two, and how far they are from each other: near or far.
machine() { taskset -c "$between" "$roceline" bench machine --json; }
distance() { awk '/"near"/ { print /true/ ? "near" : "far" }' "$1"; }

# keep_rounds BEFORE AFTER: takes out the samples of a round in which the CPUs moved, and says so.
moved=()
keep_round() {
    [ "$1" = "$2" ] && return 0
    warn "round $round: the CPUs were $1 before and $2 after; it does not count"
    moved+=("$round")
}

# Samples of rounds that count; all, if none does.
counting() {
    local pattern
    pattern=$(IFS='|'; printf '%s' "${moved[*]-}")
    if [ -n "$pattern" ] && grep -qvE "\"round\":($pattern)}" "$samples"; then
        grep -vE "\"round\":($pattern)}" "$samples"
    else
        cat "$samples"
    fi
}

# values NAME: of the rounds that count, one a line, ascending.
values() { counting | sed -n "s/.*\"name\":\"$1\",.*\"value\":\([^,]*\),.*/\1/p" | sort -g; }
median() { values "$1" | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)] }'; }

# row NAME TEXT: median, least and most.
row() {
    values "$1" | awk -v text="$2" '{ v[NR] = $1 } END { if (NR) printf "%-58s %10.4g %10.4g %10.4g\n", text, v[int((NR + 1) / 2)], v[1], v[NR] }'
}

# ratio A B TEXT: of rounds, A by B in each: median, least and most. B may be several, of which a round's largest counts.
ratio() {
    counting | awk -v a="$1" -v b=" $2 " -v text="$3" -F'"name":"|","unit"|"value":|,"round":|}' '
        $2 == a { over[$5] = $4 }
        index(b, " " $2 " ") && $4 > under[$5] + 0 { under[$5] = $4 }
        END { for (r in over) if (under[r] > 0) print over[r] / under[r] }' | sort -g |
        awk -v text="$3" '{ v[NR] = $1 } END { if (NR) printf "%-58s %9.3gx %9.3gx %9.3gx\n", text, v[int((NR + 1) / 2)], v[1], v[NR] }'
}

# finish NAME MACHINE SETUP: writes the results.
finish() {
    {
        printf '{"bench":"%s","setup":"%s","machine":' "$1" "$3"
        cat "$2"
        printf ',"rounds_moved":[%s],"samples":[' "$(IFS=,; printf '%s' "${moved[*]-}")"
        paste -sd, "$samples"
        printf ']}\n'
    } >"$results/$1.json"
    say "results: $results/$1.json"
}

# A daemon with the pair of NICs on CPU $1.
start_daemon() {
    env --default-signal=INT "$roceline" nic --cpu "$1" --preset pair >"$work/daemon.log" 2>&1 &
    started+=($!)
    "$roceline" wait --timeout 20 >/dev/null || { cat "$work/daemon.log" >&2; die "the daemon did not start"; }
}

# take_port: sets $port to one that nobody listens on and that was not taken before. Counted in a file, as callers are often in subshells.
echo 18500 >"$work/port"
take_port() {
    port=$(cat "$work/port")
    while port=$((port + 1)); listening "$port"; do :; done
    echo "$port" >"$work/port"
}

# pair PROGRAM ARGUMENTS...: a server on roce0, a client on roce1; the client's output. perftest's way of naming devices and ports.
# Both are on the CPUs of $programs, less those on which the daemon polls if others are left.
programs=0
pair() {
    local program=$1 server port
    local run=(timeout 60 taskset -c "$programs" "$roceline" run --)
    shift
    take_port
    "${run[@]}" "$program" -d roce0 -F -p $port "$@" >"$work/server" 2>&1 &
    server=$!
    wait_until 10 listening $port || { warn "$program does not listen"; cat "$work/server" >&2; }
    "${run[@]}" "$program" -d roce1 -F -p $port "$@" 127.0.0.1 2>"$work/client.err" >"$work/client" || {
        warn "$program failed: $(tail -2 "$work/client" "$work/client.err" 2>/dev/null)"
        kill $server 2>/dev/null || true
    }
    wait $server || true
    cat "$work/client"
}
