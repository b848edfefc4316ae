# arm64.cmake - a toolchain file: compiles on x86 for arm64, with Debian's cross compiler. tests/arm64.sh uses it.
#   ARM64_ROOT   a folder with Debian's arm64 libraries and headers
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ARM64_ROOT)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_SYSROOT "${ARM64_ROOT}")
set(CMAKE_FIND_ROOT_PATH "${ARM64_ROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)

# Where the linker finds the libraries that other libraries need. Then Open MPI's files: CMake cannot
# run its mpicc, a program for arm64.
set(lib "${ARM64_ROOT}/usr/lib/aarch64-linux-gnu")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,${ARM64_ROOT}/lib/aarch64-linux-gnu:${lib}:${lib}/openmpi/lib")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "${CMAKE_EXE_LINKER_FLAGS_INIT}")
set(MPI_C_LIB_NAMES mpi)
set(MPI_mpi_LIBRARY "${lib}/openmpi/lib/libmpi.so")
set(MPI_C_HEADER_DIR "${lib}/openmpi/include")
