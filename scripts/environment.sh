# Sourced by ./demo and ./runtests with the extras as arguments: creates or updates .venv when the requirements have
# changed, and puts it first on PATH. A .venv that is a link, to an environment elsewhere, is used and never changed.
# Needs only Python >= 3.11.

extras=$1
is_recent='import sys; sys.exit(sys.version_info < (3, 11))'
for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3 python; do
    [ -n "$candidate" ] && "$candidate" -c "$is_recent" 2>/dev/null && break
    candidate=
done
if [ -z "$candidate" ]; then
    echo "Python 3.11 or later was not found. Install it, or name it: PYTHON=/path/to/python $0" >&2
    exit 1
fi

wanted="$extras $(cat setup.py pyproject.toml constraints.txt | "$candidate" -c \
    'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest(), sys.version)')"
stamp=.venv/ready-for-${extras//,/-}
if [ -L .venv ]; then
    if ! .venv/bin/python -c "$is_recent" 2>/dev/null; then
        echo ".venv is a link to '$(readlink .venv)', which has no Python 3.11 or later. Remove it: rm '$PWD/.venv'" >&2
        exit 1
    fi
    echo ".venv is a link to '$(readlink .venv)': used as it is, with the code of this folder; nothing is installed." >&2
    echo "Where a package is missing: .venv/bin/python -m pip install -e '.[$extras]' changes that environment, and" >&2
    echo "rm '$PWD/.venv' makes one here at the next start." >&2
    export PYTHONPATH="$PWD:$PWD/plugins${PYTHONPATH:+:$PYTHONPATH}"
elif [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || ! .venv/bin/python -c '' 2>/dev/null; then
    echo "Setting up .venv with [$extras]: first torch, then the rest, 1 to 3 GB on the disk. With 50 Mbit/s this takes" >&2
    echo "about five minutes; pip shows what it fetches. Later starts skip it." >&2
    if ! .venv/bin/python -c '' 2>/dev/null; then
        rm -rf .venv
        "$candidate" -m venv .venv || { echo "'$candidate -m venv' failed; on Debian install python3-venv." >&2; exit 1; }
    elif ! .venv/bin/python -c "$is_recent"; then
        echo ".venv has $(.venv/bin/python -V), expected Python 3.11 or later. Remove it: rm -r '$PWD/.venv'" >&2
        exit 1
    fi
    # A set-up that was interrupted, or a Debian without python3-venv, leaves an environment without pip; so does uv.
    if ! .venv/bin/python -c 'import pip' 2>/dev/null && ! .venv/bin/python -m ensurepip >/dev/null; then
        echo ".venv has no pip, and ensurepip failed; on Debian install python3-venv." >&2
        exit 1
    fi
    pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
    # torch by itself and first, so that nothing else chooses its build. PyPI's Linux build brings gigabytes of CUDA;
    # without a GPU take the CPU build, unless pip has been told where to look.
    sources=()
    if [ "$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null && [[ ! "$(pip config list)" =~ index|find-links ]]; then
        sources=(--extra-index-url https://download.pytorch.org/whl/cpu)
    fi
    echo "1 of 2: torch" >&2
    pip install -c constraints.txt ${sources[@]+"${sources[@]}"} torch >&2
    echo "2 of 2: dp_prior with [$extras]" >&2
    pip install -c constraints.txt -e ".[$extras]" >&2
    # openpi's client, which tests drive the server with, asks for numpy 1 and runs with numpy 2; robosuite asks for
    # evdev, which needs a compiler, for the keyboards that drive its robots by hand.
    case ",$extras," in
        *,dev,*) pip install --quiet --no-deps -c constraints.txt openpi-client dm-tree robosuite numba llvmlite termcolor ;;
    esac
    echo "$wanted" > "$stamp"
fi
export PATH="$PWD/.venv/bin:$PATH" VIRTUAL_ENV="$PWD/.venv"
unset extras is_recent candidate wanted stamp sources

# glibc hands freed memory back to the system after every step and asks for it again, page by page, in the next. Keeping
# it is worth up to a fifth of a training step on a CPU. Both are needed: either alone turns off glibc's own adaptation.
# Before 2.35 a threshold above 32 MiB is refused. Other C libraries ignore the variables.
case "$(getconf GNU_LIBC_VERSION 2>/dev/null)" in
    glibc\ 2.3[5-9]* | glibc\ 2.[4-9]?*) kept=1073741824 ;;
    *) kept=33554432 ;;
esac
export MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-17179869184} MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-$kept}
unset kept
