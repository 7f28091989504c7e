#!/bin/sh
# Install the Debian packages that tests need, where that was asked for: CI=true or LOOM_TEST_APT=1.
# Without root or apt-get nothing happens, and tests that lack something say so and are skipped.

packages="slurm-client openmpi-bin mpich"

[ "${CI:-}" = true ] || [ "${LOOM_TEST_APT:-}" = 1 ] || exit 0
[ -n "$packages" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 0

missing=
for package in $packages; do
    dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
echo "apt-get install$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing
