// Runs both versions of part.cpp: each must be itself, and give the same text.
#include <cstdio>
#include <string>

std::string first_version(const char* path);
std::string second_version(const char* path);

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    const std::string a = first_version(argv[1]), b = second_version(argv[1]);
    std::printf("%s\n\n%s\n", a.c_str(), b.c_str());
    const size_t end = a.find('\n');
    const bool differ = a.substr(0, end) != b.substr(0, end), same_text = a.substr(end) == b.substr(b.find('\n'));
    return differ && same_text && a.find("2026-03-14") != std::string::npos ? 0 : 1;
}
