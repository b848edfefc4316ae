# cmake -DSOURCE=repository -DOUT=revision.h -P revision.cmake
# Writes the revision of the sources as a C macro, and leaves the file alone when it says that already.
execute_process(COMMAND git -C "${SOURCE}" describe --always --dirty --abbrev=12
    OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status ERROR_QUIET)
if(NOT status EQUAL 0)
    set(revision unknown)
endif()
file(CONFIGURE OUTPUT "${OUT}" CONTENT "#define DDP_GIT_REVISION \"${revision}\"\n")
