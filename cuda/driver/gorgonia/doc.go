// Package gorgonia is a CUDA driver that makes the calls it can through gorgonia.org/cu: devices,
// the primary context, memory, copies, streams, events, modules and launches. Pinned memory,
// function attributes and graphs, which cu lacks, come from package driver, with the same context
// and handles.
//
// It is compiled only with the tag gorgonia (make gorgonia). cu needs cgo, CUDA's header and its
// library to link, and ends a process that starts without a GPU. Built against CUDA 13 it needs the
// header in directory include before CUDA's.
package gorgonia
