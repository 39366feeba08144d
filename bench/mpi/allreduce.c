/* The other side of `bench collectives`: MPI_Allreduce measured by the same protocol.
 *
 *   allreduce BYTES BATCH MIN_SAMPLES MAX_SAMPLES SECONDS
 *
 * One sample rewrites BATCH buffers, passes a barrier, and times BATCH in-place sums, one per
 * buffer; its time is the largest over ranks. BATCH above 1 keeps the clock and the barrier's skew
 * out of operations that take less than a microsecond. Rank 0 prints one line of JSON with the
 * seconds of every sample, divided by BATCH.
 *
 * Keep in step with bench/src/collectives/rank.rs.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARM_UP 3

/* Whole numbers small enough that every sum over ranks is exact in f32, in any order. */
static float value(size_t index, long sample, int rank) {
    return (float)(index % 61 + (size_t)sample % 17 + (size_t)rank);
}

static void rewrite(float *data, size_t count, long sample, int rank) {
    size_t index = 0;
    while (index < count) {
        for (size_t phase = 0; phase < 61 && index < count; phase++, index++)
            data[index] = value(phase, sample, rank);
    }
}

static void sum(float *data, size_t count) {
    MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static double sample(float *buffers, size_t count, long batch, long number, int rank) {
    for (long buffer = 0; buffer < batch; buffer++)
        rewrite(buffers + (size_t)buffer * count, count, number, rank);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (long buffer = 0; buffer < batch; buffer++)
        sum(buffers + (size_t)buffer * count, count);
    return (MPI_Wtime() - start) / (double)batch;
}

static int correct(const float *buffers, size_t count, long batch, long number, int ranks) {
    for (size_t i = 0; i < count * (size_t)batch; i++) {
        float expected = 0;
        for (int rank = 0; rank < ranks; rank++)
            expected += value(i % count, number, rank);
        if (buffers[i] != expected) return 0;
    }
    return 1;
}

static int fail(const char *what) {
    fprintf(stderr, "allreduce: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 2);
    return 2;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 6) return fail("usage: allreduce BYTES BATCH MIN_SAMPLES MAX_SAMPLES SECONDS");
    long bytes = atol(argv[1]), batch = atol(argv[2]);
    long least = atol(argv[3]), most = atol(argv[4]);
    double seconds = atof(argv[5]);
    size_t count = (size_t)bytes / sizeof(float);
    if (bytes <= 0 || bytes > (1L << 31) || batch <= 0 || least <= 0 || most < least)
        return fail("an argument is out of range");

    size_t page = 4096, total = ((size_t)bytes * (size_t)batch + page - 1) / page * page;
    float *buffers = aligned_alloc(page, total);
    double *times = malloc((size_t)most * sizeof *times);
    if (!buffers || !times) return fail("out of memory");
    memset(buffers, 0, total);

    sample(buffers, count, batch, 0, rank);
    int mine = correct(buffers, count, batch, 0, ranks), all;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);

    /* Number of samples that fit the time, including the rewrite. The slowest rank decides. */
    double start = MPI_Wtime();
    for (long number = 1; number <= WARM_UP; number++) sample(buffers, count, batch, number, rank);
    double each = (MPI_Wtime() - start) / WARM_UP, slowest;
    MPI_Allreduce(&each, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    double fitting = slowest > 0 ? seconds / slowest : (double)most;
    long samples = fitting < (double)least ? least : fitting > (double)most ? most : (long)fitting;

    for (long number = 0; number < samples; number++)
        times[number] = sample(buffers, count, batch, number, rank);
    if (rank == 0)
        MPI_Reduce(MPI_IN_PLACE, times, (int)samples, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    else
        MPI_Reduce(times, NULL, (int)samples, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);

    if (rank == 0) {
        printf("{\"ranks\":%d,\"bytes\":%ld,\"correct\":%s,\"seconds\":[", ranks, bytes,
               all ? "true" : "false");
        for (long number = 0; number < samples; number++)
            printf("%s%.9g", number ? "," : "", times[number]);
        printf("]}\n");
    }
    free(times);
    free(buffers);
    MPI_Finalize();
    return 0;
}
