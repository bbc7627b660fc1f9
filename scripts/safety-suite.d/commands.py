"""Runs external programs. Each program has a time limit, after which it is killed together with the programs that it has started."""
import os
import signal
import subprocess

# Time limit of a program, in seconds.
LIMIT = 60


class CommandError(RuntimeError):
    """Failure of a program, with its error message."""


def run(*command, limit=LIMIT):
    """Runs a program, and returns its output. Raises CommandError if it fails or exceeds the time limit."""
    command = [str(word) for word in command]
    code, output, errors = call(command, limit, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if code != 0:
        raise CommandError(f"{' '.join(command)}: {errors.strip() or output.strip() or f'exit status {code}'}")
    return output


def attempt(*command, limit=LIMIT):
    """Runs a program whose failure does not matter. Returns whether it has succeeded."""
    try:
        return call([str(word) for word in command], limit, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)[0] == 0
    except (CommandError, OSError):
        return False


def call(command, limit, **streams):
    """Runs a program, and returns exit status, output and errors. Raises CommandError if it exceeds the time limit."""
    with subprocess.Popen(command, text=True, errors="replace", stdin=subprocess.DEVNULL, start_new_session=True, **streams) as process:
        try:
            output, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired as late:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise CommandError(f"{' '.join(command)}: no end after {limit} s") from late
        return process.returncode, output or "", errors or ""
