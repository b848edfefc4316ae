# cmake -DSOURCE=repository -DOUT=revision.h -DBUILD=compiler -P revision.cmake
# Writes the revision of the sources and the kind of build as C macros. Does not touch a file that already has them. If
# files have changed since the commit, or outside of a repository, the revision ends with a checksum of common/, cmake/
# and the steps' sources.
execute_process(COMMAND git -C "${SOURCE}" describe --always --dirty --abbrev=12
    OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status ERROR_QUIET)
if(NOT status EQUAL 0)
    set(revision unknown)
endif()
if(revision MATCHES "unknown|-dirty")
    set(sums "")
    file(GLOB_RECURSE files "${SOURCE}/common/*" "${SOURCE}/0*/*.c" "${SOURCE}/0*/*.h" "${SOURCE}/cmake/*")
    foreach(file IN LISTS files)
        file(MD5 "${file}" sum)
        string(APPEND sums "${sum}")
    endforeach()
    string(MD5 sum "${sums}")
    string(SUBSTRING "${sum}" 0 8 sum)
    string(APPEND revision "-${sum}")
endif()
file(CONFIGURE OUTPUT "${OUT}" CONTENT "#define DDP_GIT_REVISION \"${revision}\"\n#define DDP_BUILD \"${BUILD}\"\n")
