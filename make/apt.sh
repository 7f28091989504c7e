#!/bin/sh
# Install the Debian packages that tests need, where that was asked for: CI=true or LOOM_TEST_APT=1.
# Without root or apt-get nothing happens, and tests that lack something say so and are skipped.
# Some packages hold daemons; the policy keeps the installation from starting them: tests start
# their own, with their own configuration, and end them.

packages="slurm-wlm munge openmpi-bin mpich openssh-server openssh-client iproute2 zsh fish tmux chromium faketime gcc libc6-dev"
policy=/usr/sbin/policy-rc.d

[ "${CI:-}" = true ] || [ "${LOOM_TEST_APT:-}" = 1 ] || exit 0
[ -n "$packages" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 0

missing=
for package in $packages; do
    dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
echo "apt-get install$missing"

if [ ! -e "$policy" ]; then # one that is there is the machine's own answer
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing
