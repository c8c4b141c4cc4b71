#include "command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "common.h"
#include "files.h"
#include "platform.h"

namespace cli {
namespace {

/// The first error of `check` among the options of the application and of the command that was given.
template <class Check>
Status each_option(const CLI::App& app, const Check& check) {
    for (const CLI::Option* option : app.get_options())
        if (const Status s = check(*option); !s.ok()) return s;
    for (const CLI::App* command : app.get_subcommands())
        if (const Status s = each_option(*command, check); !s.ok()) return s;
    return {};
}

/// Names an option that was given an empty value, which the commands would take for one that was not given. For some an
/// empty value has a meaning: no text, a pattern that matches only that, no ids.
Status check_not_empty(const CLI::Option& option) {
    constexpr const char* kMayBeEmpty[] = {"--prompt", "--system", "--regex", "--decode"};
    const std::vector<std::string>& given = option.results();
    const auto is_named = [&](const char* name) { return option.check_name(name); };
    if (option.get_expected_min() == 0 || std::find(given.begin(), given.end(), "") == given.end() ||
        std::any_of(std::begin(kMayBeEmpty), std::end(kMayBeEmpty), is_named))
        return {};
    return Status(Code::bad_argument,
                  option.get_name() + " is empty, expected a value; leave the option out if none is meant");
}

/// Names an option that was given more often than it may be.
Status check_once(const CLI::Option& option) {
    const size_t n = option.results().size();
    if (option.get_expected_max() <= 0 || n <= static_cast<size_t>(option.get_items_expected_max())) return {};
    return Status(Code::bad_argument, option.get_name() + " is given " + std::to_string(n) + " times, expected once");
}

/// What is wrong with the arguments where CLI11's own text says it best, and where help is.
Status explain(const CLI::App& app, const std::vector<std::string>& arguments, const CLI::ParseError& e) {
    std::string text = e.what(), name = app.get_name();
    const std::string not_converted = "Could not convert: ";
    if (text.rfind(not_converted, 0) == 0) {
        text = text.substr(not_converted.size());
        const bool is_number = std::strchr("+-0123456789", text[text.find_last_of(' ') + 1]) != nullptr;
        text += is_number ? ": expected a smaller number" : ": expected true, false, or no value";
    }
    const size_t excludes = text.find(" excludes ");
    if (e.get_name() == "ExcludesError" && excludes != std::string::npos)
        text = text.substr(0, excludes) + " and " + text.substr(excludes + 10) + " contradict each other";
    if (!app.get_subcommands().empty())
        name += " " + app.get_subcommands()[0]->get_name();
    else if (app.get_require_subcommand_min() > 0)
        text = arguments.size() > 1 && arguments[1].rfind("-", 0) != 0 ? "'" + arguments[1] + "' is no command"
                                                                       : "no command was given";
    return Status(Code::bad_argument, text + " (" + name + " --help lists what there is)");
}

/// Whether the value of this argument is the next one.
bool takes_next(const CLI::App& command, const std::string& argument) {
    const auto takes = [&](const std::string& name) {
        const CLI::Option* option = command.get_option_no_throw(name);
        return option && option->get_items_expected_min() > 0;
    };
    if (argument.compare(0, 2, "--") == 0) return takes(argument);
    if (argument.compare(0, 1, "-") != 0) return false;
    size_t i = 1;  // of the letters, the first that takes a value takes the others
    while (i < argument.size() && !takes({'-', argument[i]})) ++i;
    return i + 1 == argument.size();
}

/// The arguments as CLI11 takes them: without the program's name, the last one first. It reads the value of "--option="
/// from the next argument, so an empty one is put there.
std::vector<std::string> for_parser(CLI::App& app, const std::vector<std::string>& arguments) {
    std::vector<std::string> all;
    const CLI::App* command = &app;
    bool is_value = false;
    for (size_t i = 1; i < arguments.size(); ++i) {
        const std::string& one = arguments[i];
        all.push_back(one);
        if (!is_value && one.size() > 3 && one.compare(0, 2, "--") == 0 && one.find('=') == one.size() - 1)
            all.push_back("");
        for (const CLI::App* c : app.get_subcommands([&](CLI::App* a) { return !is_value && a->get_name() == one; }))
            command = c;
        is_value = !is_value && takes_next(*command, one);
    }
    std::reverse(all.begin(), all.end());
    return all;
}

/// CLI11 reads whole numbers that begin with 0 as octal ones.
void make_decimal(CLI::App& app) {
    for (CLI::Option* option : app.get_options())
        if (option->get_type_name() == "INT" || option->get_type_name() == "UINT")
            option->transform([](std::string text) {
                const size_t from = text.find_first_not_of("+-");
                const bool digits = text.find_first_not_of("0123456789", from) == std::string::npos;
                while (digits && from < text.size() - 1 && text[from] == '0') text.erase(from, 1);
                return text;
            });
    for (CLI::App* command : app.get_subcommands({})) make_decimal(*command);
}

/// Names an option whose text is no number of its type, which CLI11 does not, or, among those that CLI11 has converted,
/// one out of range: it takes the nearest number of 64 bits.
Status check_numbers(const CLI::Option& option, bool converted) {
    const std::string type = option.get_type_name();
    const bool real = type == "FLOAT";
    if (type != "INT" && type != "UINT" && !real) return {};
    for (const std::string& text : option.results()) {
        char* end = nullptr;
        errno = 0;
        if (real)
            (void)std::strtod(text.c_str(), &end);
        else if (type == "INT")
            (void)std::strtoll(text.c_str(), &end, 0);
        else
            (void)std::strtoull(text.c_str(), &end, 0);
        const std::string said = option.get_name() + " " + text + ": expected a ";
        if (!converted && (end == text.c_str() || *end != '\0'))
            return Status(Code::bad_argument, said + (real ? "number" : "whole number"));
        if (type == "UINT" && text[0] == '-') return Status(Code::bad_argument, said + "whole number of 0 or more");
        if (!real && errno == ERANGE) return Status(Code::bad_argument, said + "whole number of at most 64 bits");
    }
    return {};
}

Status check_values(const CLI::App& app, bool converted) {
    const Status s = each_option(app, check_not_empty);
    return s.ok() ? each_option(app, [&](const CLI::Option& o) { return check_numbers(o, converted); }) : s;
}

/// Output that a full disk or a closed stream did not take is a failure even if nothing else went wrong.
int finish(int exit_code) {
    errno = 0;
    std::cout.flush();
    const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
    if (written || exit_code != kDone) return exit_code;
    return report(Status(Code::io_error, std::string("standard output: ") +
                                             (errno != 0 ? std::strerror(errno) : "not everything could be written")));
}

}  // namespace

int run_command(CLI::App& app, const std::vector<std::string>& arguments, const Chosen& chosen) {
    try {
        make_decimal(app);
        app.parse(for_parser(app, arguments));
        Status s = check_values(app, true);
        if (s.ok()) s = check_files(app.get_subcommands().empty() ? app : *app.get_subcommands()[0]);
        if (!s.ok()) return report(s);
        catch_interrupts();
        return finish(chosen());
    } catch (const CLI::ParseError& e) {
        if (e.get_exit_code() == 0) return finish(app.exit(e));  // --help, --version
        Status s = check_values(app, false);
        if (s.ok()) s = each_option(app, check_once);
        return report(s.ok() ? explain(app, arguments, e) : s);
    } catch (const std::bad_alloc&) {
        return report(Status(Code::out_of_memory, "the system has no more memory for this process"));
    }
}

}  // namespace cli
