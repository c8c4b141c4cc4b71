// tests/precompiled: what most test files include, compiled once where everything is compiled from scratch
// (AUSPEX_UNITY_GROUPS). Test files include what they use all the same.
#pragma once
#include "../src/engine/model.h"
#include "tiny.h"
#include "vulkan_support.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>
