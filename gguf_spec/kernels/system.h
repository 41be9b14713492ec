// What differs by operating system, for entry.cpp: functions of loaded libraries, what lies at an address, large pages, and what processor and system
// offer. It knows nothing of llama.cpp. Linux and Windows (compiled by MinGW) were run, macOS was only compiled.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
#include <psapi.h>
#else
#include <dlfcn.h>
#endif
#if defined(__APPLE__)
#include <mach/mach.h>
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif
#if !defined(__aarch64__)
#include <cpuid.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#endif

#if defined(_WIN32)
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

// A function of a library (dlopen's handle) or of those that it needs; null where there is none.
inline void * symbol(void * library, const char * name) {
#if defined(_WIN32)
    // a library does not pass on the functions of others here
    if (void * found = (void *) GetProcAddress((HMODULE) library, name)) return found;
    HMODULE all[1024];
    DWORD bytes = 0;
    if (!K32EnumProcessModules(GetCurrentProcess(), all, sizeof(all), &bytes)) return nullptr;
    for (DWORD i = 0; i < bytes / sizeof(*all) && i < sizeof(all) / sizeof(*all); i++)
        if (void * found = (void *) GetProcAddress(all[i], name)) return found;
    return nullptr;
#else
    return dlsym(library, name);
#endif
}

#if defined(_WIN32)
// The function that a library calls by this name; null where it calls none.
inline void * called(void * library, const char * name) {
    char * const start = (char *) library;
    const auto headers = (const IMAGE_NT_HEADERS *) (start + ((const IMAGE_DOS_HEADER *) start)->e_lfanew);
    const IMAGE_DATA_DIRECTORY & imports = headers->OptionalHeader.DataDirectory[IMAGE_DIRECTORY_ENTRY_IMPORT];
    for (auto one = (const IMAGE_IMPORT_DESCRIPTOR *) (start + imports.VirtualAddress); imports.Size && one->Name; one++) {
        if (!one->OriginalFirstThunk) continue;
        auto names = (const IMAGE_THUNK_DATA *) (start + one->OriginalFirstThunk), places = (const IMAGE_THUNK_DATA *) (start + one->FirstThunk);
        for (; names->u1.AddressOfData; names++, places++)
            if (!IMAGE_SNAP_BY_ORDINAL(names->u1.Ordinal) && !strcmp(((const IMAGE_IMPORT_BY_NAME *) (start + names->u1.AddressOfData))->Name, name))
                return (void *) places->u1.Function;
    }
    return nullptr;
}
#endif

// Memory that a C++ library frees by operator delete; null where there is none. needed: a library with the functions that it needs.
inline void * allocated_for(void * library, void * needed, size_t bytes) {
#if defined(_WIN32)
    void * make = called(library, "_Znwy"); // where it has operator new in itself, that calls malloc
    if (!make) make = called(library, "malloc");
    (void) needed;
    return make ? ((void * (*) (size_t)) make)(bytes) : nullptr;
#else
    void * make = dlsym(RTLD_DEFAULT, "_Znwm"); // operator new, as the library finds it
    if (!make) make = dlsym(library, "_Znwm");
    if (!make) make = dlsym(needed, "_Znwm");
    return (make ? (void * (*) (size_t)) make : malloc)(bytes);
#endif
}

// Whether four pointers can be read there.
inline bool is_mapped(const void * p) {
    if (!p || (size_t) p % sizeof(p)) return false;
#if defined(_WIN32)
    for (int i = 0; i < 4; i++) {
        MEMORY_BASIC_INFORMATION about;
        if (!VirtualQuery((void * const *) p + i, &about, sizeof(about)) || about.State != MEM_COMMIT || about.Protect & (PAGE_NOACCESS | PAGE_GUARD)) return false;
    }
    return true;
#elif defined(__APPLE__)
    void * copy[4];
    vm_size_t n = 0;
    return vm_read_overwrite(mach_task_self(), (vm_address_t) p, sizeof(copy), (vm_address_t) copy, &n) == KERN_SUCCESS && n == sizeof(copy);
#else
    const size_t page = sysconf(_SC_PAGESIZE), first = (size_t) p & ~(page - 1), n = (size_t) p + 4 * sizeof(p) - first;
    return !msync((void *) first, n, MS_ASYNC); // does nothing where there is memory; unlike mincore it is among systemd's @system-service
#endif
}

// Where the library with a function begins; null where there is none.
inline void * library_of(void * function) {
#if defined(_WIN32)
    HMODULE found;
    return GetModuleHandleExA(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT, (const char *) function, &found) ? found : nullptr;
#else
    Dl_info found;
    return dladdr(function, &found) ? found.dli_fbase : nullptr;
#endif
}

// Ask for large pages, whose number of bytes is `page`, in a range; where there are none the pages stay small.
inline void ask_for_large_pages(void * buffer, size_t bytes, size_t page) {
#if defined(__linux__)
    const size_t first = ((size_t) buffer + page - 1) / page * page, last = ((size_t) buffer + bytes) / page * page;
    madvise((void *) first, last - first, MADV_HUGEPAGE);
#else
    (void) buffer, (void) bytes, (void) page;
#endif
}

#if defined(__aarch64__)
// Instructions for dot products (ASIMDDP), and for products of 2 x 8 numbers (I8MM).
struct Processor { bool dot_products, i8mm; };
inline Processor processor() {
#if defined(__APPLE__)
    const auto has = [](const char * name) { int value = 0; size_t n = sizeof(value); return !sysctlbyname(name, &value, &n, nullptr, 0) && value; };
    return {has("hw.optional.arm.FEAT_DotProd"), has("hw.optional.arm.FEAT_I8MM")};
#else
    return {(bool) (getauxval(AT_HWCAP) >> 20 & 1), (bool) (getauxval(AT_HWCAP2) >> 13 & 1)};
#endif
}
#endif
