"""Packages from npm for tests, pinned and kept in a cache folder, so that only the first run needs the registry."""
import functools
import os
import shutil
import subprocess
import unittest

CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "auspex", "npm")


@functools.lru_cache(maxsize=None)
def registry_answers():
    """Asked once, and for seconds only: `npm install` tries for more than a minute."""
    try:
        command = ["npm", "view", "npm", "version", "--fetch-retries=0", "--fetch-timeout=10000"]
        return subprocess.run(command, capture_output=True, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def install(packages, scripts=False):
    """The folder with the packages; raises SkipTest where they cannot be had. scripts: run those that they bring."""
    if not shutil.which("node") or not shutil.which("npm"):
        raise unittest.SkipTest("needs node and npm")
    folder = os.path.join(CACHE, "-".join(packages).replace("/", "_"))
    done = os.path.join(folder, "done")
    if not os.path.exists(done):
        if not registry_answers():
            raise unittest.SkipTest("the npm registry cannot be reached")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "package.json"), "w") as f:
            f.write('{"private": true, "type": "module"}')
        try:
            options = ["--no-audit", "--no-fund", *([] if scripts else ["--ignore-scripts"])]
            r = subprocess.run(["npm", "install", *options, *packages], cwd=folder, capture_output=True, timeout=120)
        except subprocess.TimeoutExpired:
            raise unittest.SkipTest("npm did not install " + " ".join(packages) + " in 120 s")
        if r.returncode:
            raise unittest.SkipTest("npm cannot install " + " ".join(packages))
        open(done, "w").close()
    return folder


def run_script(folder, script, *arguments, timeout=120):
    """Runs a script with node, which looks for packages from where the script lies."""
    copy = os.path.join(folder, os.path.basename(script))
    shutil.copy(script, copy)
    return subprocess.run(["node", copy, *arguments], capture_output=True, text=True, timeout=timeout)
