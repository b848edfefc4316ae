#!/usr/bin/env bash
# arm64.sh [REGEX] - compiles the CPU backend for arm64 with Debian's cross compiler, and runs most C tests under
# qemu; with REGEX, only those whose names match. `./ddp test` does not run it, because emulation is slow.
#
# Debian's arm64 libraries are unpacked in build/arm64/root; nothing is installed. The environment variable MARCH
# chooses the instruction set: with MARCH=armv8.4-a+sve, vectors have no fixed width.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
. "$root/tools/shell.sh"
cd "$root"
build=$root/build/arm64
libraries=$build/root

without='
test_model            slow: many steps of ResNets
test_ranks_step       slow
test_replicas         slow
test_step             slow: longer than six minutes
test_step_amp         slow
'

for program in aarch64-linux-gnu-gcc aarch64-linux-gnu-g++ qemu-aarch64-static; do
    have $program ||
        die "there is no $program" "apt install gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user-static"
done

# A separate apt, which knows the architecture arm64 and no installed package.
arm64_apt()
{
    apt-get -q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root \
        -o Debug::NoLocking=1 -o Dir::State="$build/apt" -o Dir::State::status="$build/apt/status" \
        -o Dir::Cache="$build/apt/cache" "$@"
}

if [ ! -e "$libraries/complete" ]; then
    mkdir -p "$libraries" "$build"/apt/{lists,cache/archives}/partial
    : >"$build/apt/status"
    mapfile -t packages < <(sed -nE 's/^(build|ranks|mpi|pictures) .*\| *//p' cmake/requirements.txt |
        tr ' ' '\n' | grep '^lib.*-dev$')
    arm64_apt update
    arm64_apt install --yes --download-only --no-install-recommends "${packages[@]}"
    for package in "$build"/apt/cache/archives/*.deb; do dpkg-deb -x "$package" "$libraries"; done
    rm -r "$build/apt"
    touch "$libraries/complete"
fi

run cmake -S . -B "$build" -DCMAKE_TOOLCHAIN_FILE=cmake/arm64.cmake -DARM64_ROOT="$libraries" -DDDP_CUDA=OFF \
    -DDDP_MARCH="${MARCH:-armv8.2-a}"
run cmake --build "$build" --parallel

export BUILD=$build/cpu SRC=$root QEMU_CPU=max QEMU_LD_PREFIX=$libraries
failed=''
for program in "$build"/tests/test_*; do
    name=${program##*/}
    if [ ! -x "$program" ] || [ ! -f "$program" ] || [[ ! $name =~ ${1:-.} ]] || grep -q "^$name " <<<"$without"; then
        continue
    fi
    seconds=$SECONDS status=0
    tests/run.sh 1800 qemu-aarch64-static "$program" >"$build/output" 2>&1 || status=$?
    if [ $status = 0 ] || [ $status = 77 ]; then
        say "${green}passed$plain  $name, $((SECONDS - seconds)) s"
    else
        cat "$build/output"
        say "${red}FAILED$plain  $name, status $status"
        failed+=" $name"
    fi
done
[ -z "$failed" ] || die "failed:$failed"
