# What every step needs: compiler flags, common/ as one library for each backend, and ddp_step().
# Included by the top CMakeLists.txt, and by a step's own when that step is built alone.
#
#   backend     computes with               its ranks talk over
#   cpu         oneDNN                      Gloo
#   cuda        CUDA, cuDNN, cuBLASLt       NCCL
#   cuda-gloo   the same                    Gloo: several ranks may share a GPU
#
# A backend is built if its libraries are found. If only the last column's library is missing, cpu and
# cuda still have the steps that are one process. The configuration ends with a line for each backend.
include_guard(GLOBAL)

# C++ is for one file, common/comm/gloo/comm_gloo.cc: Gloo's calls are C++. By default the C++ compiler
# is the C compiler's sister, such as clang++-14 for clang-14: their objects can be linked together.
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

option(DDP_CPU "build the cpu backend where its libraries are found" ON)
option(DDP_CUDA "build the cuda backends where their libraries are found" ON)
# A build for x86-64-v3, which has AVX2, also uses AVX-512 where a processor has it: common/cpu/loops_cpu.h.
set(march native)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64" AND EXISTS /proc/cpuinfo)
    file(STRINGS /proc/cpuinfo flags REGEX "^flags.* avx2( |$)" LIMIT_COUNT 1)
    if(flags MATCHES " fma " AND flags MATCHES " bmi2 ")
        set(march x86-64-v3)
    endif()
endif()
set(DDP_MARCH ${march} CACHE STRING "CPUs that the computing files are compiled for: a value of -march")
set(DDP_MACHINE -march=${DDP_MARCH})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    if(DDP_MARCH STREQUAL native)
        set(DDP_MACHINE -mcpu=native)           # before version 15, clang has no -march=native on arm64
    endif()
    # With SVE, gcc 12 and 13 store some sums of vectors before they are computed. 1: use only NEON.
    list(APPEND DDP_MACHINE
        $<$<AND:$<C_COMPILER_ID:GNU>,$<VERSION_LESS:$<C_COMPILER_VERSION>,14>>:--param=aarch64-autovec-preference=1>)
endif()
set(DDP_SANITIZE "" CACHE STRING
    "sanitizers for everything that is compiled: 'address,undefined', 'thread', or nothing")

# --- how everything is compiled ---------------------------------------------------------------------

if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g1")     # CMake's own would add -DNDEBUG
set(CMAKE_C_FLAGS_DEBUG "-Og -g3")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_C_FLAGS_RELWITHDEBINFO}")
set(CMAKE_CXX_FLAGS_DEBUG "${CMAKE_C_FLAGS_DEBUG}")
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)           # for editors and clang tools
# A warning of a compiler that we have not tried must not stop a user's build. .ci/run sets DDP_WERROR, and the preset
# "strict" sets this option.
if(NOT DEFINED CMAKE_COMPILE_WARNING_AS_ERROR)
    set(CMAKE_COMPILE_WARNING_AS_ERROR "$ENV{DDP_WERROR}")
endif()
include(CheckPIESupported)
check_pie_supported(LANGUAGES C)

add_library(ddp_flags INTERFACE)
target_compile_options(ddp_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wno-missing-field-initializers -Wno-unused-parameter -fstack-protector-strong>
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers -Wno-unused-parameter -fstack-protector-strong>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-Wno-unused-parameter>)
target_compile_definitions(ddp_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C>:_GNU_SOURCE>)
target_include_directories(ddp_flags INTERFACE "${DDP_ROOT}/common")
target_link_options(ddp_flags INTERFACE -Wl,-z,relro,-z,now
    -Wl,--as-needed)        # a program that is not a rank loads neither Gloo nor NCCL
if(DDP_SANITIZE)
    set(sanitize -fsanitize=${DDP_SANITIZE} -fno-sanitize-recover=all)
    target_compile_options(ddp_flags INTERFACE ${sanitize} -O1 -fno-omit-frame-pointer)
    target_link_options(ddp_flags INTERFACE ${sanitize})
elseif(NOT CMAKE_BUILD_TYPE STREQUAL Debug)     # needs the optimizer
    target_compile_options(ddp_flags INTERFACE
        $<$<COMPILE_LANGUAGE:C>:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2>)
endif()

# For common/ and the programs, not for the tests.
set(DDP_STRICT "$<$<COMPILE_LANGUAGE:C>:-Wshadow;-Wmissing-prototypes;-Wundef;-Wwrite-strings;-Wvla>")

# --- the revision, for the configuration that a run logs, and for ranks to compare ---------------------
# Every build asks git for the revision, and writes it only if it has changed: a commit recompiles two files.

set(build "${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}, ${DDP_MARCH}")
if(DDP_MARCH STREQUAL native)
    file(STRINGS /proc/cpuinfo model REGEX "^model name" LIMIT_COUNT 1)
    string(REGEX REPLACE ".*: *" " of " model "${model}")
    string(APPEND build "${model}")
endif()
set(revision_h "${CMAKE_BINARY_DIR}/revision/revision.h")
add_custom_target(ddp_revision
    COMMAND ${CMAKE_COMMAND} "-DSOURCE=${DDP_ROOT}" "-DOUT=${revision_h}" "-DBUILD=${build}"
        -P "${CMAKE_CURRENT_LIST_DIR}/revision.cmake"
    BYPRODUCTS "${revision_h}"
    COMMENT "" VERBATIM)

# --- libraries ----------------------------------------------------------------------------------------

# ddp_missing(LIST WHAT): adds "no WHAT (PACKAGES)" to LIST, with the packages from requirements.txt.
function(ddp_missing list what)
    file(STRINGS "${DDP_ROOT}/cmake/requirements.txt" row REGEX "^[a-z]+ *\\| ${what} *\\|")
    string(REGEX REPLACE ".*\\| *" "" packages "${row}")
    set(${list} ${${list}} "no ${what} (${packages})" PARENT_SCOPE)
endfunction()

# ddp_find(NAME WHAT LIBRARIES HEADER): makes the target ddp::NAME, or sets NAME_MISSING to what is missing.
# cuDNN and NCCL may also be unpacked from pip's packages, where a library has only its numbered name.
function(ddp_find name what libraries header)
    set(roots ${${name}_ROOT} ENV ${name}_ROOT)
    find_library(${name}_LIBRARY NAMES ${libraries} NAMES_PER_DIR
        HINTS ${roots} ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
    find_path(${name}_INCLUDE_DIR NAMES ${header}
        HINTS ${roots} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
    set(missing "")
    if(${name}_LIBRARY AND ${name}_INCLUDE_DIR)
        add_library(ddp::${name} INTERFACE IMPORTED GLOBAL)
        target_link_libraries(ddp::${name} INTERFACE "${${name}_LIBRARY}")
        target_include_directories(ddp::${name} SYSTEM INTERFACE "${${name}_INCLUDE_DIR}")
    else()
        ddp_missing(missing "${what}")
    endif()
    set(${name}_MISSING ${missing} PARENT_SCOPE)
endfunction()

find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(JPEG QUIET)
find_package(PNG QUIET)
set(PICTURES_MISSING "")
if(NOT JPEG_FOUND)
    ddp_missing(PICTURES_MISSING libjpeg-turbo)
endif()
if(NOT PNG_FOUND)
    ddp_missing(PICTURES_MISSING libpng)
endif()
list(JOIN PICTURES_MISSING ", " PICTURES_MISSING)
set(DDP_FORMATS ddp::JANSSON ZLIB::ZLIB)        # of the files that are read
if(NOT PICTURES_MISSING)
    list(APPEND DDP_FORMATS JPEG::JPEG PNG::PNG)
endif()
find_package(OpenMP COMPONENTS C)
if(NOT OpenMP_C_FOUND)
    message(FATAL_ERROR "${CMAKE_C_COMPILER} has no OpenMP; clang needs: apt install libomp-dev")
endif()
find_package(MPI QUIET COMPONENTS C)
set(mpi MPI::MPI_C)
set(left_out openmpi_missing)           # of common/world
if(NOT MPI_C_FOUND)
    set(mpi "")
    set(left_out openmpi)
endif()
find_package(CUDAToolkit QUIET)
set(CUDA_MISSING "")
if(NOT CUDAToolkit_FOUND)
    ddp_missing(CUDA_MISSING "CUDA toolkit")
endif()
ddp_find(JANSSON jansson jansson jansson.h)
ddp_find(DNNL oneDNN dnnl dnnl.h)
ddp_find(GLOO Gloo gloo gloo/rendezvous/store.h)
ddp_find(CUDNN cuDNN "cudnn;libcudnn.so.9" cudnn.h)
ddp_find(NCCL NCCL "nccl;libnccl.so.2" nccl.h)

# --- common/ ------------------------------------------------------------------------------------------

# ddp_objects(TARGET ROOMS LIBRARIES...): compiles the folders ROOMS of common/, with these libraries.
function(ddp_objects target rooms)
    set(patterns "")
    foreach(room IN LISTS rooms)
        list(APPEND patterns "${DDP_ROOT}/common/${room}/*.c" "${DDP_ROOT}/common/${room}/*.cc"
            "${DDP_ROOT}/common/${room}/*.cu")
    endforeach()
    file(GLOB sources CONFIGURE_DEPENDS ${patterns})
    list(FILTER sources EXCLUDE REGEX "/${left_out}\\.c$")
    add_library(${target} OBJECT ${sources})
    target_link_libraries(${target} PUBLIC ddp_flags ${ARGN} Threads::Threads OpenMP::OpenMP_C)
    target_compile_options(${target} PRIVATE ${DDP_STRICT})

    # Only the files that compute with many numbers on the CPU are compiled for DDP_MARCH.
    set(numbers ${sources})
    list(FILTER numbers INCLUDE REGEX "/common/ops/|/(loops_cpu|attention_cpu|pool_cpu|gloo_reduce|pictures)\\.c$")
    set(options ${DDP_MACHINE} -ffp-contract=fast -fno-math-errno
        # clang warns when a loop could not be vectorized, and clang 19 when the processor has AVX10.
        "$<$<C_COMPILER_ID:Clang>:-Wno-pass-failed;-Wno-unknown-warning-option;-Wno-invalid-feature-combination>")
    # For some processors gcc adds up products of f32 with separate roundings, but only in loops for AVX2. With 0, gcc
    # always fuses, so loops for AVX2 and for AVX-512 give the same bits.
    if(CMAKE_C_COMPILER_ID STREQUAL GNU AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64")
        list(APPEND options --param=avoid-fma-max-bits=0)
    endif()
    if(NOT DDP_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL Debug)
        list(APPEND options -O3)
    endif()
    if(DDP_SANITIZE AND CMAKE_C_COMPILER_ID STREQUAL GNU)   # ASan's copies of the stack misalign 64-byte vectors
        list(APPEND options --param=asan-use-after-return=0)
    endif()
    set_source_files_properties(${numbers} PROPERTIES COMPILE_OPTIONS "${options}")
    # gcc would turn copies of packs (ops/packs.h) into calls of memcpy, which keep packs in memory
    set(operations ${sources})
    list(FILTER operations INCLUDE REGEX "/common/ops/")
    set_source_files_properties(${operations} PROPERTIES
        COMPILE_OPTIONS "${options};$<$<C_COMPILER_ID:GNU>:-fno-tree-loop-distribute-patterns>")

    if(PICTURES_MISSING)
        set_source_files_properties("${DDP_ROOT}/common/data/pictures.c" PROPERTIES
            COMPILE_DEFINITIONS "DDP_PICTURES_MISSING=\"${PICTURES_MISSING}\"")
    endif()
    set_source_files_properties("${DDP_ROOT}/common/data/data.c" PROPERTIES
        COMPILE_DEFINITIONS "DDP_SOURCE_DIR=\"${DDP_ROOT}\"")

    add_dependencies(${target} ddp_revision)
    set_source_files_properties("${DDP_ROOT}/common/base/log.c" "${DDP_ROOT}/common/world/machine.c" PROPERTIES
        COMPILE_OPTIONS "-include;${revision_h}"    # defines DDP_GIT_REVISION and DDP_BUILD
        OBJECT_DEPENDS "${revision_h}")
endfunction()

ddp_objects(ddp_base "base;data;model;checkpoint" "${DDP_FORMATS}")

# Ranks: processes that find each other and communicate.
ddp_objects(ddp_world "world;comm" "ZLIB::ZLIB;${mpi}")
if(NOT GLOO_MISSING)
    ddp_objects(ddp_gloo comm/gloo ddp::GLOO)
endif()

# ddp_backend(NAME COMPUTE MISSING COMM MISSING): makes the library ddp_NAME out of the objects COMPUTE and, for
# ranks, COMM. If COMPUTE misses something, there is no library; if COMM does, the library has no ranks.
set(DDP_BACKENDS "")
function(ddp_backend name compute compute_missing comm comm_missing)
    set(DDP_${name}_MISSING ${compute_missing} PARENT_SCOPE)
    set(DDP_${name}_RANKS_MISSING ${comm_missing} PARENT_SCOPE)
    if(compute_missing)
        return()
    endif()
    set(parts ddp_base ${compute})
    if(NOT comm_missing)
        list(APPEND parts ddp_world ${comm})
    endif()
    list(TRANSFORM parts REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
    list(TRANSFORM parts REPLACE "(.+)" "$<TARGET_PROPERTY:\\1,INTERFACE_LINK_LIBRARIES>")
    add_library(ddp_${name} STATIC ${objects})
    target_link_libraries(ddp_${name} PUBLIC ${parts} m)

    set(DDP_BACKENDS ${DDP_BACKENDS} ${name} PARENT_SCOPE)
endfunction()

set(missing ${JANSSON_MISSING} ${DNNL_MISSING})
if(NOT DDP_CPU)
    set(missing "DDP_CPU is OFF")
elseif(NOT missing)
    ddp_objects(ddp_compute_cpu "cpu;ops" ddp::DNNL)
endif()
ddp_backend(cpu ddp_compute_cpu "${missing}" ddp_gloo "${GLOO_MISSING}")

# Where CUDA cannot be used, the report says why; the cpu backend is built all the same.
foreach(library cublasLt cudart_static)
    if(NOT CUDA_MISSING AND NOT TARGET CUDA::${library})
        set(CUDA_MISSING "no ${library} in the CUDA toolkit at ${CUDAToolkit_LIBRARY_DIR}")
    endif()
endforeach()
if(NOT CUDNN_MISSING)       # older versions make no plans from a description of a device
    set(header "${CUDNN_INCLUDE_DIR}/cudnn_version.h")
    if(EXISTS "${header}")
        file(STRINGS "${header}" version REGEX "^#define CUDNN_(MAJOR|MINOR) ")
        string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" version "${version}")
    else()
        set(version "9.0 or older")
    endif()
    if(version VERSION_LESS 9.8)
        set(CUDNN_MISSING "cuDNN is ${version}, and 9.8 is needed")
        unset(CUDNN_LIBRARY CACHE)              # the next configuration searches again
        unset(CUDNN_INCLUDE_DIR CACHE)
    endif()
endif()
set(missing ${JANSSON_MISSING} ${CUDA_MISSING} ${CUDNN_MISSING})
if(DDP_CUDA AND NOT missing AND NOT CMAKE_CUDA_COMPILER)
    include(CheckLanguage)
    set(ENV{CUDACXX} "${CUDAToolkit_NVCC_EXECUTABLE}")
    unset(CMAKE_CUDA_COMPILER CACHE)
    check_language(CUDA)
    if(NOT CMAKE_CUDA_COMPILER)
        set(missing "${CUDAToolkit_NVCC_EXECUTABLE} fails (CMakeError.log or CMakeConfigureLog.yaml in CMakeFiles has its output); if it is too \
old for this g++, name an older g++: -DCMAKE_CUDA_HOST_COMPILER=g++-12")
    endif()
endif()
if(NOT DDP_CUDA)
    set(missing "DDP_CUDA is OFF")
elseif(NOT missing)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual CACHE STRING "")
    endif()
    enable_language(CUDA)
    set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O2 -g")
    set(CMAKE_CUDA_STANDARD 17)
    ddp_objects(ddp_compute_cuda cuda "ddp::CUDNN;CUDA::cublasLt;CUDA::cudart_static")
    file(GLOB operations CONFIGURE_DEPENDS "${DDP_ROOT}/common/ops/*.c")
    foreach(operation IN LISTS operations)      # nvcc compiles these C files as CUDA
        cmake_path(GET operation STEM name)
        set(made "${CMAKE_BINARY_DIR}/ops/${name}.cu")
        file(CONFIGURE OUTPUT "${made}" CONTENT "#define ON_GPU\n#include \"ops/${name}.c\"\n")
        target_sources(ddp_compute_cuda PRIVATE "${made}")
    endforeach()
    if(NOT NCCL_MISSING)
        ddp_objects(ddp_nccl comm/nccl "ddp::NCCL;CUDA::cudart_static;ddp::CUDNN")
    endif()
endif()
ddp_backend(cuda ddp_compute_cuda "${missing}" ddp_nccl "${NCCL_MISSING}")
if(NOT missing)
    set(missing ${GLOO_MISSING})
endif()
ddp_backend(cuda-gloo ddp_compute_cuda "${missing}" ddp_gloo "")

# --- programs -----------------------------------------------------------------------------------------

# ddp_program(TARGET PATH SOURCES... [RANKS]): build/BACKEND/PATH, for every backend; with RANKS, for
# every backend that has ranks. Its targets are TARGET_BACKEND.
function(ddp_program target path)
    cmake_parse_arguments(PROGRAM "RANKS" "" "" ${ARGN})
    cmake_path(GET path FILENAME name)
    cmake_path(GET path PARENT_PATH folder)
    foreach(backend IN LISTS DDP_BACKENDS)
        if(PROGRAM_RANKS AND DDP_${backend}_RANKS_MISSING)
            continue()
        endif()
        add_executable(${target}_${backend} ${PROGRAM_UNPARSED_ARGUMENTS})
        target_link_libraries(${target}_${backend} PRIVATE ddp_${backend})
        target_compile_options(${target}_${backend} PRIVATE ${DDP_STRICT})
        set_target_properties(${target}_${backend} PROPERTIES OUTPUT_NAME ${name}
            RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/${backend}/${folder}")
        if(NOT TARGET steps)
            add_custom_target(steps)
        endif()
        add_dependencies(steps ${target}_${backend})
    endforeach()
endfunction()

# ddp_step(SOURCES... [RANKS]): the program train of the directory that calls ddp_step.
function(ddp_step)
    get_filename_component(step "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
    ddp_program(${step} "${step}/train" ${ARGN})
endfunction()

# ddp_also(NAME SOURCES...): another program of that directory, for ranks; built whenever train is.
function(ddp_also name)
    get_filename_component(step "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
    ddp_program(${step}_${name} "${step}/${name}" ${ARGN} RANKS)
    foreach(backend IN LISTS DDP_BACKENDS)
        if(TARGET ${step}_${name}_${backend})
            add_dependencies(${step}_${backend} ${step}_${name}_${backend})
        endif()
    endforeach()
endfunction()

# ddp_launcher(launch.c): the program that starts that directory's ranks.
function(ddp_launcher)
    ddp_also(launch ${ARGN})
endfunction()

# --- what is built, and what is left out --------------------------------------------------------------

function(ddp_report)
    foreach(backend cpu cuda cuda-gloo)
        string(REPLACE ";" ", " missing "${DDP_${backend}_MISSING}")
        string(REPLACE ";" ", " ranks_missing "${DDP_${backend}_RANKS_MISSING}")
        if(missing)
            message(STATUS "${backend} backend: left out: ${missing}")
        elseif(ranks_missing)
            message(STATUS "${backend} backend: only steps 01 and 02: ${ranks_missing}")
        else()
            message(STATUS "${backend} backend: all steps")
        endif()
    endforeach()
    if(PICTURES_MISSING)
        message(STATUS "folders of pictures: left out: ${PICTURES_MISSING}")
    endif()
    if(NOT MPI_C_FOUND)
        ddp_missing(mpi_missing "Open MPI")
        message(STATUS "ranks of mpirun: left out: ${mpi_missing}")
    endif()
    list(JOIN DDP_BACKENDS " " backends)
    file(WRITE "${CMAKE_BINARY_DIR}/backends" "${backends}\n")      # for ./ddp
    if(NOT DDP_BACKENDS)
        message(FATAL_ERROR "no backend can be built: the lines above name what is missing")
    endif()
endfunction()
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL ddp_report)
