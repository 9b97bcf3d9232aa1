/* Work for many threads by OpenMP, whose runtime looks up names before main. */
#include <omp.h>
#include <stdio.h>

int main(void) {
    double sum = 0;
    int threads = 0;
#pragma omp parallel for reduction(+ : sum) num_threads(8)
    for (int i = 0; i < 100000; i++) sum += i % 97;
#pragma omp parallel num_threads(8)
#pragma omp single
    threads = omp_get_num_threads();
    printf("%.0f by %d threads, %d device(s)\n", sum, threads, omp_get_num_devices());
    return 0;
}
