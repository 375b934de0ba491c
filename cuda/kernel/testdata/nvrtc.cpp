// Compiles a file to PTX with a given NVRTC: library, source, architecture, output, options.
#include <cstdio>
#include <dlfcn.h>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
	void* library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
	if (!library) return fprintf(stderr, "%s\n", dlerror()), 2;
	typedef void* Program;
	auto create = (int (*)(Program*, const char*, const char*, int, const char* const*, const char* const*))dlsym(library, "nvrtcCreateProgram");
	auto compile = (int (*)(Program, int, const char* const*))dlsym(library, "nvrtcCompileProgram");
	auto log_size = (int (*)(Program, size_t*))dlsym(library, "nvrtcGetProgramLogSize");
	auto get_log = (int (*)(Program, char*))dlsym(library, "nvrtcGetProgramLog");
	auto ptx_size = (int (*)(Program, size_t*))dlsym(library, "nvrtcGetPTXSize");
	auto get_ptx = (int (*)(Program, char*))dlsym(library, "nvrtcGetPTX");

	std::stringstream source;
	source << std::ifstream(argv[2]).rdbuf();
	Program program;
	if (create(&program, source.str().c_str(), argv[2], 0, nullptr, nullptr)) return fprintf(stderr, "no program\n"), 2;
	std::string target = std::string("--gpu-architecture=compute_") + argv[3];
	std::vector<const char*> options(argv + 5, argv + argc);
	options.push_back(target.c_str());
	int failed = compile(program, (int)options.size(), options.data());
	size_t n = 0;
	log_size(program, &n);
	std::string text(n, 0);
	get_log(program, &text[0]);
	fputs(text.c_str(), stderr);
	if (failed) return 1;
	ptx_size(program, &n);
	text.assign(n, 0);
	get_ptx(program, &text[0]);
	std::ofstream(argv[4]) << text.c_str();
}
