# Sourced after common.sh. Installs Autobahn 0.8.2 once into the user's cache and sets `suite`.
# shellcheck shell=bash
autobahn_cache=$cache_root/millrace-autobahn
suite=$autobahn_cache/suite

# The suite supports only Python 2.
python2=
for candidate in "${PYTHON2:-}" python2.7 python2 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/2.7*/bin/python; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (2, 7))' 2>/dev/null; then
        python2=$candidate
        break
    fi
done
[ -n "$python2" ] || skip "Autobahn needs Python 2.7, which is not here (PYTHON2=.. names one)"

# `installed` is written last, so an interrupted installation is not taken for a complete one.
if [ ! -e "$autobahn_cache/installed" ]; then
    echo "installing autobahntestsuite 0.8.2 into $autobahn_cache"
    rm -rf "$autobahn_cache" && mkdir -p "$autobahn_cache"
    "$python2" -m pip install -q --disable-pip-version-check --target "$autobahn_cache/virtualenv" 'virtualenv==20.15.1' 2>"$autobahn_cache/log" &&
        PYTHONPATH=$autobahn_cache/virtualenv "$python2" -m virtualenv -q "$suite" 2>>"$autobahn_cache/log" &&
        "$suite/bin/pip" install -q --disable-pip-version-check 'autobahntestsuite==0.8.2' 2>>"$autobahn_cache/log" ||
        { cat "$autobahn_cache/log" >&2; skip "autobahntestsuite could not be installed"; }
    touch "$autobahn_cache/installed"
fi
