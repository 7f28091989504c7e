#!/bin/sh
# Be one host: the first process of fresh net, uts, ipc, mount and pid namespaces. Give them what a
# machine has of its own and hold them until the owner's end of stdin closes, which it does however
# the owner ends. When the first process of a pid namespace ends, the kernel kills the others.
# usage: hold.sh NAME FOLDER    FOLDER holds hosts, passwd, shadow, boot_id, machine-id and cgroup/
set -e
name=$1
folder=$2

hostname "$name"
mount -t proc proc /proc
mount --bind "$folder/boot_id" /proc/sys/kernel/random/boot_id
for file in hosts passwd shadow machine-id; do
    [ ! -e "/etc/$file" ] || mount --bind "$folder/$file" "/etc/$file"
done
if [ -d /sys/fs/cgroup ]; then # a sysfs shows the interfaces of the namespace it was mounted in
    mount --rbind /sys/fs/cgroup "$folder/cgroup"
    mount -t sysfs sysfs /sys
    mount --move "$folder/cgroup" /sys/fs/cgroup
fi
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -m 755 /run/sshd /run/user
mkdir -m 700 "/run/user/$(id -u)" /run/loom
ip link set lo up
echo ready
# Orphans come to this process; it lets the kernel bury them.
exec env --ignore-signal=CHLD cat >/dev/null
