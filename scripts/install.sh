#!/bin/sh
# Installs what was built: programs, units, manual pages, completions, examples. Fetches nothing.
#
#   scripts/install.sh [--programs DIR] [--prefix DIR] [--destdir DIR]
#   scripts/install.sh --uninstall [--prefix DIR] [--destdir DIR]
#
# --programs  where cenote, cenote-lab and cenote-memcached are [target/release]
# --prefix    below which all but settings go [/usr/local]
# --destdir   a folder that stands for /, for packages: nothing of this machine is changed then
#
# Settings that are in /etc/cenote stay as they are. No service is enabled, started or restarted.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
programs=$here/target/release
prefix=/usr/local
destdir=
action=install
while [ $# -gt 0 ]; do
    case $1 in
    --programs | --prefix | --destdir)
        [ $# -ge 2 ] || { echo "$1: a folder" >&2; exit 2; }
        case $1 in
        --programs) programs=$2 ;;
        --prefix) prefix=$2 ;;
        --destdir) destdir=$2 ;;
        esac
        shift 2
        ;;
    --uninstall) action=uninstall; shift ;;
    *)
        sed -n '4,5s/^# *//p' "$0" >&2
        exit 2
        ;;
    esac
done
case $prefix in /*) ;; *) echo "--prefix $prefix: an absolute path" >&2; exit 2 ;; esac
to=$destdir$prefix
names="cenote cenote-lab cenote-memcached"
man=$to/share/man/man1
units="cenote-cache@.service cenote-host.service cenote-kv.service cenote-store@.service
    cenote-swap.service cenote-volume@.service"

if [ "$action" = uninstall ]; then
    for unit in $units; do rm -f "$to/lib/systemd/system/$unit"; done
    for program in $names; do rm -f "$to/bin/$program"; done
    rm -f "$to/lib/sysusers.d/cenote.conf" \
        "$man"/cenote.1 "$man"/cenote-*.1 \
        "$to/share/bash-completion/completions/cenote" \
        "$to/share/zsh/vendor-completions/_cenote" "$to/share/fish/vendor_completions.d/cenote.fish"
    rm -rf "$to/share/doc/cenote"
    echo "removed; /etc/cenote, /var/lib/cenote* and the user cenote stay"
    exit 0
fi

for program in $names; do
    if [ ! -x "$programs/$program" ]; then
        echo "$programs/$program is not there: make build" >&2
        exit 1
    fi
done
install -d "$to/bin" "$to/lib/systemd/system" "$to/lib/sysusers.d" "$man" \
    "$to/share/bash-completion/completions" "$to/share/zsh/vendor-completions" \
    "$to/share/fish/vendor_completions.d" "$to/share/doc/cenote" "$destdir/etc/cenote"
for program in $names; do
    # A new file over the old name: processes that run keep theirs.
    install -m 755 "$programs/$program" "$to/bin/$program.new"
    mv "$to/bin/$program.new" "$to/bin/$program"
done
for unit in $units; do
    sed "s|/usr/bin/cenote|$prefix/bin/cenote|" "$here/dist/$unit" > "$to/lib/systemd/system/$unit"
    chmod 644 "$to/lib/systemd/system/$unit"
done
install -m 644 "$here/dist/cenote.sysusers" "$to/lib/sysusers.d/cenote.conf"
"$programs/cenote" man "$man"
"$programs/cenote-lab" man "$man"
"$programs/cenote" completions bash > "$to/share/bash-completion/completions/cenote"
"$programs/cenote" completions zsh > "$to/share/zsh/vendor-completions/_cenote"
"$programs/cenote" completions fish > "$to/share/fish/vendor_completions.d/cenote.fish"
cp -r "$here/LICENSE" "$here/CHANGELOG.md" "$here/dist/prometheus" "$here/dist/grafana" \
    "$to/share/doc/cenote/"
for settings in host.toml kv.env store.env; do
    [ -e "$destdir/etc/cenote/$settings" ] ||
        install -m 644 "$here/dist/$settings" "$destdir/etc/cenote/$settings"
done
if [ -z "$destdir" ] && [ "$(id -u)" -eq 0 ]; then
    if command -v systemd-sysusers >/dev/null; then
        systemd-sysusers "$to/lib/sysusers.d/cenote.conf"
        chown root:cenote /etc/cenote
        chmod 750 /etc/cenote
    fi
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
fi
echo "installed below $to; docs/deploy.md goes on from here"
