package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// library describes how one of the shared libraries is found.
type library struct {
	what     string // for messages, such as "the CUDA compiler NVRTC"
	variable string // environment variable that names its file
	stem     string // such as "libnvrtc"
	get      string // how to get it
}

var (
	libCUDA = library{"the NVIDIA driver", "AUTOPAR_LIBCUDA", "libcuda",
		"it comes with the driver (https://www.nvidia.com/drivers), and into a container with the NVIDIA Container Toolkit"}
	libNVRTC = library{"the CUDA compiler NVRTC", "AUTOPAR_LIBNVRTC", "libnvrtc",
		"it is part of the CUDA toolkit, and of pip install nvidia-cuda-nvrtc"}
	libCUBLASLt = library{"cuBLASLt", "AUTOPAR_LIBCUBLASLT", "libcublasLt",
		"it is part of the CUDA toolkit, and of pip install nvidia-cublas"}
	libNCCL = library{"NCCL", "AUTOPAR_LIBNCCL", "libnccl",
		"it is in NVIDIA's package repository as libnccl2, and in pip install nvidia-nccl-cu13"}
)

// candidates lists where a library may be, best first: the file that the environment variable
// names, or else its bare names, for the loader, and then files in the directories of the CUDA
// toolkit and of Python packages. majors are the acceptable major versions, best first.
func (l library) candidates(majors []int, env func(string) string) []string {
	if file := env(l.variable); file != "" {
		return []string{file}
	}
	var names []string
	for _, major := range majors {
		names = append(names, fmt.Sprintf("%s.so.%d", l.stem, major))
	}
	found := slices.Clone(names)
	for _, folder := range folders(env) {
		for _, name := range names {
			files, _ := filepath.Glob(filepath.Join(folder, name)) // the pattern is well formed
			found = append(found, files...)
		}
	}
	return found
}

// folders lists, as patterns, the directories in which toolkits and Python packages keep libraries.
func folders(env func(string) string) []string {
	var list []string
	for _, v := range []string{"CUDA_HOME", "CUDA_PATH"} {
		if root := env(v); root != "" {
			list = append(list, filepath.Join(root, "lib64"), filepath.Join(root, "targets/*/lib"))
		}
	}
	list = append(list, "/usr/local/cuda/lib64", "/usr/local/cuda/targets/*/lib", "/usr/local/cuda-1[23]*/lib64", "/opt/cuda/lib64", "/usr/local/nvidia/lib64")
	packages := filepath.SplitList(env("PYTHONPATH"))
	for _, root := range []string{env("VIRTUAL_ENV"), env("CONDA_PREFIX"), home(env, ".local"), home(env, ".pyenv/versions/*"), "/opt/conda", "/opt/venv", "/usr/local", "/usr"} {
		if root != "" {
			packages = append(packages, filepath.Join(root, "lib/python3*/site-packages"), filepath.Join(root, "lib/python3*/dist-packages"))
		}
	}
	for _, p := range packages {
		list = append(list, filepath.Join(p, "nvidia/*/lib")) // nvidia/cublas/lib of CUDA 12, nvidia/cu13/lib of 13
	}
	return list
}

func home(env func(string) string, folder string) string {
	if h := env("HOME"); h != "" {
		return filepath.Join(h, folder)
	}
	return ""
}

// open loads the first candidate that can be loaded.
func (l library) open(majors []int) (*shared, error) {
	tried := l.candidates(majors, os.Getenv)
	var reason error
	for _, file := range tried {
		handle, err := dlopen(file)
		if err == nil {
			return &shared{library: l, file: file, handle: handle}, nil
		}
		if reason == nil || strings.ContainsRune(file, '/') {
			reason = err // the reason for a file that exists says more than that for a bare name
		}
	}
	msg := fmt.Sprintf("is not here: %v; %s; %s=FILE names its place", reason, l.get, l.variable)
	return nil, &MissingError{Library: fmt.Sprintf("%s.so.%d (%s)", l.stem, majors[0], l.what), Msg: msg}
}

// tooOld returns the error for a library that is too old.
func (s *shared) tooOld(have, want string) error {
	return &MissingError{Library: fmt.Sprintf("%s (%s)", s.file, s.what), Msg: fmt.Sprintf("has version %s, want at least %s; %s", have, want, s.get)}
}

// shared is a loaded library.
type shared struct {
	library
	file   string
	handle uintptr
}

// proc is a function of a library.
type proc struct {
	name string
	addr uintptr
}

// proc finds a function. missing keeps the first error.
func (s *shared) proc(name string, missing *error) proc {
	addr, err := dlsym(s.handle, name)
	if err != nil && *missing == nil {
		*missing = &MissingError{Library: fmt.Sprintf("%s (%s)", s.file, s.what), Msg: fmt.Sprintf("has no %s: it is too old, or not what it seems; %s", name, s.get)}
	}
	return proc{name, addr}
}
