"""What tests in Python share: a folder of its own for each test, and whether a GPU is required."""
import os
import shutil
import tempfile
import unittest

GPU_REQUIRED = os.environ.get("AUSPEX_REQUIRE_GPU", "") not in ("", "0")  # as in tests/support.cpp


class BaseFolder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def file(self, name, data):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as f:
            f.write(data.encode() if isinstance(data, str) else data)
        return path
