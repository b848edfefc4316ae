# What every step needs: compiler flags, common/ as one library for each backend, and ddp_step().
# Included by the top CMakeLists.txt, and by a step's own when that step is built alone.
include_guard(GLOBAL)

# C++ is for one file, common/gloo/gloo_shim.cc: Gloo's calls are C++. Its compiler has to be the C
# compiler's sister, clang++-14 for clang-14: they link together, sanitizers and all.
if(NOT CMAKE_CXX_COMPILER AND NOT DEFINED ENV{CXX})
    cmake_path(GET CMAKE_C_COMPILER FILENAME sister)
    string(REGEX REPLACE "clang" "clang++" sister "${sister}")
    string(REGEX REPLACE "gcc" "g++" sister "${sister}")
    cmake_path(REPLACE_FILENAME CMAKE_C_COMPILER "${sister}" OUTPUT_VARIABLE sister)
    if(NOT sister STREQUAL CMAKE_C_COMPILER AND EXISTS "${sister}")
        set(CMAKE_CXX_COMPILER "${sister}")
    endif()
endif()
enable_language(CXX)

get_filename_component(DDP_ROOT "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)

option(DDP_CUDA "build the CUDA backend where its libraries are found" ON)
set(DDP_MARCH native CACHE STRING "the CPUs for which numbers are computed: what -march takes")
set(DDP_SANITIZE "" CACHE STRING
    "sanitizers for everything that is compiled: 'address,undefined', 'thread', or nothing")

# --- how everything is compiled ---------------------------------------------------------------------

if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g")      # CMake's own would add -DNDEBUG
set(CMAKE_C_FLAGS_DEBUG "-Og -g3")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_C_FLAGS_RELWITHDEBINFO}")
set(CMAKE_CXX_FLAGS_DEBUG "${CMAKE_C_FLAGS_DEBUG}")
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)           # for editors and clang tools
if(NOT DEFINED CMAKE_COMPILE_WARNING_AS_ERROR)
    set(CMAKE_COMPILE_WARNING_AS_ERROR ON)      # -DCMAKE_COMPILE_WARNING_AS_ERROR=OFF to go on
endif()
include(CheckPIESupported)
check_pie_supported(LANGUAGES C)

add_library(ddp_flags INTERFACE)
target_compile_options(ddp_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wno-missing-field-initializers -fstack-protector-strong>
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -fstack-protector-strong>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
target_compile_definitions(ddp_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C>:_GNU_SOURCE>
    DDP_SOURCE_DIR="${DDP_ROOT}")
target_include_directories(ddp_flags INTERFACE "${DDP_ROOT}/common")
target_link_options(ddp_flags INTERFACE -Wl,-z,relro,-z,now
    -Wl,--as-needed)        # a program that meets no others loads neither Gloo nor NCCL
if(DDP_SANITIZE)
    set(sanitize -fsanitize=${DDP_SANITIZE} -fno-sanitize-recover=all)
    target_compile_options(ddp_flags INTERFACE ${sanitize} -O1 -fno-omit-frame-pointer)
    target_link_options(ddp_flags INTERFACE ${sanitize})
elseif(NOT CMAKE_BUILD_TYPE STREQUAL Debug)     # needs the optimizer
    target_compile_options(ddp_flags INTERFACE
        $<$<COMPILE_LANGUAGE:C>:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2>)
endif()

# --- the revision, for the configuration that a run logs ----------------------------------------------
# Asked for at every build, written only when it has changed: a commit recompiles one file.

set(revision_h "${CMAKE_BINARY_DIR}/revision/revision.h")
add_custom_target(ddp_revision
    COMMAND ${CMAKE_COMMAND} "-DSOURCE=${DDP_ROOT}" "-DOUT=${revision_h}"
        -P "${CMAKE_CURRENT_LIST_DIR}/revision.cmake"
    BYPRODUCTS "${revision_h}"
    COMMENT "")

# --- common/, once for each backend -------------------------------------------------------------------

find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS C)
find_package(MPI QUIET COMPONENTS C)            # from 04 on; what does not call it does not load it
if(NOT MPI_C_FOUND)
    message(FATAL_ERROR "Open MPI is not there; on Debian and Ubuntu: apt install libopenmpi-dev openmpi-bin")
endif()
find_library(SODIUM_LIBRARY NAMES sodium)
find_path(SODIUM_INCLUDE_DIR NAMES sodium.h)
if(NOT SODIUM_LIBRARY OR NOT SODIUM_INCLUDE_DIR)
    message(FATAL_ERROR "libsodium is not there; on Debian and Ubuntu: apt install libsodium-dev")
endif()

# DDP_${backend}_FOLDERS: those of common/ that it takes, besides what stands in common/ itself;
# DDP_${backend}_OBJECTS: a target that has compiled that, and more, already.
function(ddp_common target backend)
    set(patterns "${DDP_ROOT}/common/*.c")
    set(type STATIC)
    if(DDP_${backend}_OBJECTS)
        set(patterns "")
        set(objects $<TARGET_OBJECTS:${DDP_${backend}_OBJECTS}>)
    elseif(NOT DDP_${backend}_LIBRARIES)
        set(type OBJECT)
    endif()
    foreach(folder IN LISTS DDP_${backend}_FOLDERS)
        list(APPEND patterns "${DDP_ROOT}/common/${folder}/*.c"
            "${DDP_ROOT}/common/${folder}/*.cc" "${DDP_ROOT}/common/${folder}/*.cu")
    endforeach()
    file(GLOB sources CONFIGURE_DEPENDS ${patterns})
    add_library(${target} ${type} ${sources} ${objects})
    target_include_directories(${target} SYSTEM PUBLIC ${DDP_${backend}_INCLUDE_DIRS}
        "${SODIUM_INCLUDE_DIR}")
    target_link_libraries(${target} PUBLIC ddp_flags ${DDP_${backend}_LIBRARIES}
        ZLIB::ZLIB "${SODIUM_LIBRARY}" MPI::MPI_C Threads::Threads OpenMP::OpenMP_C m)

    add_dependencies(${target} ddp_revision)
    set_source_files_properties("${DDP_ROOT}/common/log.c" PROPERTIES
        COMPILE_OPTIONS "-include;${revision_h}"    # defines DDP_GIT_REVISION
        OBJECT_DEPENDS "${revision_h}")

    # Only what the CPU computes with many numbers is compiled for this very machine, or for DDP_MARCH.
    list(FILTER sources INCLUDE REGEX "/(cpu/ops|gloo/gloo_reduce)[^/]*\\.c$")
    set(options "$<$<NOT:$<CONFIG:Debug>>:-O3>" -march=${DDP_MARCH} -ffp-contract=fast
        "$<$<C_COMPILER_ID:Clang>:-Wno-pass-failed>")   # says when a loop could not be vectorized
    set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "${options}")
endfunction()

# cpu: oneDNN; and Gloo between processes.
find_library(DNNL_LIBRARY NAMES dnnl)
find_path(DNNL_INCLUDE_DIR NAMES dnnl.h)
find_library(GLOO_LIBRARY NAMES gloo)
find_path(GLOO_INCLUDE_DIR NAMES gloo/rendezvous/store.h)
if(NOT DNNL_LIBRARY OR NOT DNNL_INCLUDE_DIR)
    message(FATAL_ERROR "oneDNN is not there; on Debian and Ubuntu: apt install libdnnl-dev")
endif()
if(NOT GLOO_LIBRARY OR NOT GLOO_INCLUDE_DIR)
    message(FATAL_ERROR "Gloo is not there; on Debian and Ubuntu: apt install libgloo-dev")
endif()
set(DDP_cpu_FOLDERS cpu gloo)
set(DDP_cpu_INCLUDE_DIRS "${DNNL_INCLUDE_DIR}" "${GLOO_INCLUDE_DIR}")
set(DDP_cpu_LIBRARIES "${DNNL_LIBRARY}" "${GLOO_LIBRARY}")
ddp_common(ddp_cpu cpu)
set(DDP_BACKENDS cpu)

# cuda: cudart, cuBLASLt, cuDNN and NCCL, or one line that says which of them is missing. cuDNN and
# NCCL may also be unpacked from pip's packages, where the library has only its numbered name.
macro(ddp_find_cuda_library name number header)
    find_library(${name}_LIBRARY NAMES ${number} NAMES_PER_DIR
        HINTS ${${name}_ROOT} ENV ${name}_ROOT ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
    find_path(${name}_INCLUDE_DIR NAMES ${header}
        HINTS ${${name}_ROOT} ENV ${name}_ROOT ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
    if(NOT ${name}_LIBRARY OR NOT ${name}_INCLUDE_DIR)
        list(APPEND missing "no ${name}")
    endif()
endmacro()

set(missing "")
if(DDP_CUDA)
    find_package(CUDAToolkit QUIET)
    if(NOT CUDAToolkit_FOUND)
        list(APPEND missing "no CUDA toolkit")
    endif()
    ddp_find_cuda_library(CUDNN "cudnn;libcudnn.so.9" cudnn.h)
    ddp_find_cuda_library(NCCL "nccl;libnccl.so.2" nccl.h)
else()
    list(APPEND missing "switched off by DDP_CUDA=OFF")
endif()

if(missing)
    list(JOIN missing ", " missing)
    message(STATUS "cuda backend: off (${missing})")
else()
    if(NOT CMAKE_CUDA_COMPILER)
        set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
    endif()
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual CACHE STRING "")
    endif()
    enable_language(CUDA)
    set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O2 -g")
    set(CMAKE_CUDA_STANDARD 17)
    set(includes "${CUDNN_INCLUDE_DIR}" ${CUDAToolkit_INCLUDE_DIRS})
    set(libraries "${CUDNN_LIBRARY}" CUDA::cublasLt CUDA::cudart_static)
    set(DDP_gpu_FOLDERS cuda)
    set(DDP_gpu_INCLUDE_DIRS ${includes})
    ddp_common(ddp_gpu gpu)
    set(DDP_cuda_OBJECTS ddp_gpu)
    set(DDP_cuda_FOLDERS nccl)
    set(DDP_cuda_INCLUDE_DIRS ${includes} "${NCCL_INCLUDE_DIR}")
    set(DDP_cuda_LIBRARIES ${libraries} "${NCCL_LIBRARY}")
    # cuda-gloo: the same with Gloo between processes, which may then share a GPU.
    set(DDP_cuda-gloo_OBJECTS ddp_gpu)
    set(DDP_cuda-gloo_FOLDERS gloo)
    set(DDP_cuda-gloo_INCLUDE_DIRS ${includes} "${GLOO_INCLUDE_DIR}")
    set(DDP_cuda-gloo_LIBRARIES ${libraries} "${GLOO_LIBRARY}")
    foreach(backend cuda cuda-gloo)
        ddp_common(ddp_${backend} ${backend})
        list(APPEND DDP_BACKENDS ${backend})
    endforeach()
    message(STATUS "cuda backend: on (${CUDNN_LIBRARY}, ${NCCL_LIBRARY})")
endif()

# --- programs -----------------------------------------------------------------------------------------

# ddp_program(TARGET PATH SOURCES...): build/BACKEND/PATH, for every backend.
function(ddp_program target path)
    cmake_path(GET path FILENAME name)
    cmake_path(GET path PARENT_PATH folder)
    foreach(backend IN LISTS DDP_BACKENDS)
        add_executable(${target}_${backend} ${ARGN})
        target_link_libraries(${target}_${backend} PRIVATE ddp_${backend})
        set_target_properties(${target}_${backend} PROPERTIES OUTPUT_NAME ${name}
            RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/${backend}/${folder}")
    endforeach()
endfunction()

# ddp_step(train.c ...): the program of the directory that calls it.
function(ddp_step)
    get_filename_component(step "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
    ddp_program(${step} "${step}/train" ${ARGN})
endfunction()

# ddp_launcher(launch.c): the program there that starts the ranks.
function(ddp_launcher)
    get_filename_component(step "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
    ddp_program(${step}_launch "${step}/launch" ${ARGN})
endfunction()
