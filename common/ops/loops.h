// loops.h - the loops that operations are made of, in OpenMP (cpu/loops_cpu.h) and as kernels
// (cuda/loops.cuh). The files of ops/ are compiled for each backend, as C or by nvcc (ON_GPU).
// packs.h has At, Pack, FOR_LANES.
//
// An operation is a job (a struct of its arguments, copied when it is enqueued), a function of a
// job and a place, and one line that makes the loop:
//
//   loop                     calls                         for
//   CELLS(fn, Job)           fn(job, type, at)             each pack of neighbours in a matrix
//   COLUMNS(fn, end, Job)    fn(job, type, at, sums)       the same, with two sums for each column,
//                            end(job, column, sums)        then each column, with its sums
//   ROWS(fn, Job)            fn(job, type, row)            each row of a matrix, by a team
//   ITEMS(fn, Job)           fn(job, i)                    each i
//   TOTALS(fn, end, Job, n)  fn(job, i, one)               each i, to set one[0] to one[n - 1],
//                            end(job, totals)              then once, with the sums over all i
//   ROW_TOTALS               the same                      each row, by a team
//
// The operation's function in ops.h or op.h fills a job and runs the loop:
//
//   RUN_CELLS(fn, stream, matrix, &job)        RUN_COLUMNS, RUN_ROWS, RUN_ROW_TOTALS: likewise
//   RUN_ITEMS(fn, stream, count, &job)         RUN_TOTALS: likewise
//
// A function with a `type` is compiled for each type of number, and `type` is a constant; with
// CELLS_F32 and ROWS_F32, for f32 only. A team computes a row together (FOR_ROW, FOR_PACKS). It is
// a warp of a GPU or one thread of a CPU.
//
// Sums have the same bits every time, whatever the number of threads: which numbers form a piece
// depends only on the matrix, and the sums of pieces are added up in a fixed order, in double.
#pragma once
#include "ops/packs.h"
#ifdef ON_GPU
#include "cuda/loops.cuh"
#else
#include "cpu/loops_cpu.h"
#endif
