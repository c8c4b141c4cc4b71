#include "jinja.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace jinja {
namespace names_impl {

/// Finds `name` in a list of names and values that ends with an empty name.
template <class T>
struct Named {
    const char* name;
    T value;
};
template <class T, size_t N>
bool find_named(const Named<T> (&list)[N], std::string_view name, T* to) {
    for (const Named<T>& entry : list)
        if (name == entry.name) {
            *to = entry.value;
            return true;
        }
    return false;
}

constexpr Named<Filter> kFilters[] = {{"abs", Filter::abs},
                                      {"batch", Filter::batch},
                                      {"capitalize", Filter::capitalize},
                                      {"count", Filter::length},
                                      {"d", Filter::default_},
                                      {"default", Filter::default_},
                                      {"dictsort", Filter::dictsort},
                                      {"first", Filter::first},
                                      {"float", Filter::float_},
                                      {"format", Filter::format},
                                      {"fromjson", Filter::fromjson},
                                      {"groupby", Filter::groupby},
                                      {"indent", Filter::indent},
                                      {"int", Filter::int_},
                                      {"items", Filter::items},
                                      {"join", Filter::join},
                                      {"last", Filter::last},
                                      {"length", Filter::length},
                                      {"list", Filter::list},
                                      {"lower", Filter::lower},
                                      {"map", Filter::map},
                                      {"max", Filter::max},
                                      {"min", Filter::min},
                                      {"reject", Filter::reject},
                                      {"rejectattr", Filter::rejectattr},
                                      {"replace", Filter::replace},
                                      {"reverse", Filter::reverse},
                                      {"round", Filter::round},
                                      {"safe", Filter::safe},
                                      {"select", Filter::select},
                                      {"selectattr", Filter::selectattr},
                                      {"slice", Filter::slice},
                                      {"sort", Filter::sort},
                                      {"string", Filter::string},
                                      {"sum", Filter::sum},
                                      {"title", Filter::title},
                                      {"tojson", Filter::tojson},
                                      {"trim", Filter::trim},
                                      {"unique", Filter::unique},
                                      {"upper", Filter::upper}};

constexpr Named<Test> kTests[] = {{"!=", Test::not_equal},
                                  {"<", Test::less},
                                  {"<=", Test::less_equal},
                                  {"==", Test::equal},
                                  {">", Test::greater},
                                  {">=", Test::greater_equal},
                                  {"boolean", Test::boolean},
                                  {"callable", Test::callable},
                                  {"defined", Test::defined},
                                  {"divisibleby", Test::divisibleby},
                                  {"eq", Test::equal},
                                  {"equalto", Test::equal},
                                  {"even", Test::even},
                                  {"false", Test::false_},
                                  {"filter", Test::filter},
                                  {"float", Test::float_},
                                  {"ge", Test::greater_equal},
                                  {"greaterthan", Test::greater},
                                  {"gt", Test::greater},
                                  {"in", Test::in},
                                  {"integer", Test::integer},
                                  {"iterable", Test::iterable},
                                  {"le", Test::less_equal},
                                  {"lessthan", Test::less},
                                  {"lower", Test::lower},
                                  {"lt", Test::less},
                                  {"mapping", Test::mapping},
                                  {"ne", Test::not_equal},
                                  {"none", Test::none},
                                  {"number", Test::number},
                                  {"odd", Test::odd},
                                  {"sameas", Test::sameas},
                                  {"sequence", Test::sequence},
                                  {"string", Test::string},
                                  {"test", Test::test},
                                  {"true", Test::true_},
                                  {"undefined", Test::undefined},
                                  {"upper", Test::upper}};

constexpr Named<Function> kFunctions[] = {{"dict", Function::dict},
                                          {"namespace", Function::namespace_},
                                          {"raise_exception", Function::raise_exception},
                                          {"range", Function::range},
                                          {"strftime_now", Function::strftime_now}};

}  // namespace names_impl

bool find_filter(std::string_view name, Filter* to) { return names_impl::find_named(names_impl::kFilters, name, to); }
bool find_test(std::string_view name, Test* to) { return names_impl::find_named(names_impl::kTests, name, to); }
bool find_function(std::string_view name, Function* to) {
    return names_impl::find_named(names_impl::kFunctions, name, to);
}
bool takes_argument(Test test) {
    switch (test) {
        case Test::divisibleby:
        case Test::equal:
        case Test::greater:
        case Test::greater_equal:
        case Test::in:
        case Test::less:
        case Test::less_equal:
        case Test::not_equal:
        case Test::sameas: return true;
        default: return false;
    }
}

}  // namespace jinja
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
