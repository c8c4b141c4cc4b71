#include "texts.h"

#include <cstdio>

namespace cli {
namespace {

const char* const kUnits[] = {"Pump", "Valve", "Fan", "Boiler", "Chiller", "Turbine", "Motor", "Mixer"};
const char* const kParts[] = {"bearing", "seal", "filter", "belt", "gasket", "sensor"};
const char* const kActions[] = {"inspected", "replaced", "lubricated", "tightened", "cleaned"};
const char* const kNames[] = {"Ada",  "Chen", "Dara", "Eli",  "Hana", "Ivo",
                              "June", "Milo", "Nora", "Omar", "Rosa", "Tara"};
const char* const kPlaces[] = {"the harbour",  "the orchard", "an old mill",   "the night market",
                               "a lighthouse", "the quarry",  "a frozen lake", "the archive"};
const char* const kThings[] = {"a brass key",    "a torn map",     "a red lantern",  "three coins",
                               "a silent radio", "a wooden flute", "a jar of seeds", "a broken compass"};
const char* const kMoods[] = {"curious", "tired", "hopeful", "uneasy", "stubborn", "amused", "patient", "restless"};
const char* const kVerbs[] = {"carried", "hid", "traded", "repaired", "forgot", "painted", "buried", "borrowed"};

template <size_t N>
std::string one_of(const char* const (&list)[N], Dice& dice) {
    return list[dice.below(static_cast<uint32_t>(N))];
}

std::string log_text(size_t bytes, Dice& dice) {
    const std::string unit = one_of(kUnits, dice) + "-" + std::to_string(1 + dice.below(9));
    std::string note = one_of(kParts, dice) + " " + one_of(kActions, dice), text;
    uint32_t minute = 480 + 15 * dice.below(16), temperature = 50 + dice.below(20);
    for (; text.size() < bytes; minute += 15) {
        if (dice.below(16) == 0) note = one_of(kParts, dice) + " " + one_of(kActions, dice);
        temperature += dice.below(6) == 0 ? 1 : 0;
        char line[160];
        std::snprintf(line, sizeof line,
                      "2026-03-%02u %02u:%02u %s status=nominal temp=%uC vibration=0.2 note: %s, no further action\n",
                      1 + minute / 1440 % 28, minute / 60 % 24, minute % 60, unit.c_str(), temperature, note.c_str());
        text += line;
    }
    return text;
}

std::string story_text(size_t bytes, Dice& dice) {
    std::string text;
    while (text.size() < bytes) {
        const std::string a = one_of(kNames, dice), b = one_of(kNames, dice);
        switch (dice.below(5)) {
            case 0:
                text += a + " " + one_of(kVerbs, dice) + " " + one_of(kThings, dice) + " near " +
                        one_of(kPlaces, dice) + ". ";
                break;
            case 1:
                text += "At " + one_of(kPlaces, dice) + ", the fog would not lift, and " + a + " felt " +
                        one_of(kMoods, dice) + ". ";
                break;
            case 2:
                text += "\"I have " + one_of(kThings, dice) + ",\" said " + a + ", \"but nobody at " +
                        one_of(kPlaces, dice) + " wants it.\" ";
                break;
            case 3:
                text += "Nobody knew why " + a + " " + one_of(kVerbs, dice) + " " + one_of(kThings, dice) +
                        ", least of all " + b + ". ";
                break;
            default:
                text +=
                    a + " and " + b + " argued about " + one_of(kThings, dice) + " until the stars came out early. ";
                break;
        }
    }
    text.pop_back();
    return text;
}

std::string code_text(size_t bytes, Dice& dice) {
    std::string text = "import os\nimport json\n\n\n";
    while (text.size() < bytes) {
        const std::string part = one_of(kParts, dice), action = one_of(kActions, dice);
        switch (dice.below(3)) {
            case 0:
                text += "def read_" + part + "(path):\n    \"\"\"Return the lines of a " + part +
                        " file.\"\"\"\n    with open(path) as f:\n        return [line.strip() for line in f]\n\n\n";
                break;
            case 1:
                text += "def is_" + action + "(" + part +
                        ", names=None):\n    if names is None:\n        names = []\n    return " + part +
                        " in names\n\n\n";
                break;
            default:
                text += "class " + std::string(1, static_cast<char>(part[0] - 'a' + 'A')) + part.substr(1) +
                        ":\n    def __init__(self, name, value=0):\n        self.name = name\n        self.value = "
                        "value\n\n"
                        "    def " +
                        action + "(self):\n        return self.value > 0\n\n\n";
                break;
        }
    }
    return text + "def ";
}

std::string json_text(size_t bytes, Dice& dice) {
    std::string text;
    while (text.size() < bytes)
        text += "{\"id\": " + std::to_string(1000 + dice.below(99000)) + ", \"unit\": \"" + one_of(kUnits, dice) + "-" +
                std::to_string(1 + dice.below(9)) +
                "\", \"status\": \"nominal\", \"temp_c\": " + std::to_string(30 + dice.below(80)) + ", \"part\": \"" +
                one_of(kParts, dice) + "\", \"action\": \"" + one_of(kActions, dice) + "\", \"by\": \"" +
                one_of(kNames, dice) + "\"}\n";
    return text;
}

}  // namespace

std::string plant_log_line(Dice& dice, uint32_t minute) {
    static const char* const kinds[] = {"Pump", "Valve", "Fan", "Motor", "Sensor", "Mixer"};
    static const char* const states[] = {"nominal", "nominal", "nominal", "warning", "idle", "restarted"};
    char line[128];
    std::snprintf(line, sizeof line, "2026-03-%02u %02u:%02u %s-%u status=%s temp=%u.%u\n", 1 + minute / 1440 % 28,
                  minute / 60 % 24, minute % 60, kinds[dice.below(6)], 1 + dice.below(9), states[dice.below(6)],
                  20 + dice.below(60), dice.below(10));
    return line;
}

std::string text_of(const std::string& kind, size_t bytes, uint64_t seed) {
    Dice dice{seed};
    dice.below(2);  // the first number is that of the seed itself
    if (kind == "log") return log_text(bytes, dice);
    if (kind == "story") return story_text(bytes, dice);
    if (kind == "code") return code_text(bytes, dice);
    if (kind == "json") return json_text(bytes, dice);
    return {};
}

}  // namespace cli
