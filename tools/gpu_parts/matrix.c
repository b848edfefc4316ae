// matrix.c [DEVICE]: all plans of fused attention that the tree's code asks for, on nine described GPUs.
#define main test_main
#include "./tests/test_cudnn_plans.c"
#undef main
#include <time.h>
int main(int argc, char **argv)
{
    static const int Ts[] = { 64, 128, 256, 512, 1024 }, ds[] = { 32, 64, 128 };
    char nvrtc[32];
    snprintf(nvrtc, sizeof nvrtc, "libnvrtc.so.%d", getenv("NVRTC") ? atoi(getenv("NVRTC")) : CUDART_VERSION / 1000);
    if (!load_driver() || !dlopen(nvrtc, RTLD_NOW | RTLD_GLOBAL)) { printf("no driver or %s\n", nvrtc); return 1; }
    printf("cuDNN %zu\n", cudnnGetVersion());
    bool few = getenv("FEW") != NULL;
    for (size_t v = 0; v < sizeof devices / sizeof *devices; v++) {
        if (argc > 1 && strcmp(argv[1], devices[v].name)) continue;
        PlanRules rules = { .profile = profile_new(&devices[v]) };
        if (!rules.profile) { printf("%s: refused\n", devices[v].name); continue; }
        for (int t = 1; t < 3; t++)
            for (int backward = 0; backward < 2; backward++) {
                int good = 0, all = 0; long long most = 0; unsigned notes = 0; double slow = 0; char missing[400] = "";
                for (int i = few ? 4 : 0; i < 5; i++)
                    for (int k = few ? 1 : 0; k < (few ? 2 : 3); k++) {
                        FusedProblem f = { types[t], 16, 768 / ds[k], Ts[i], ds[k] };
                        CudnnPlan plan;
                        clock_t begin = clock();
                        all++;
                        if (fused_plan_new(&plan, &f, backward, &rules)) {
                            good++; notes |= plan.notes; if (plan.workspace > most) most = plan.workspace;
                        } else {
                            size_t n = strlen(missing); snprintf(missing + n, sizeof missing - n, " %d/%d", f.T, f.d);
                        }
                        double s = (double)(clock() - begin) / CLOCKS_PER_SEC; if (s > slow) slow = s;
                        cudnn_plan_free(&plan);
                    }
                printf("%s %s %s: %d of %d plans, workspace %lld, notes %x, slowest %.2f s%s%s\n", devices[v].name, type_name(types[t]),
                       backward ? "backward" : "forward", good, all, most, notes, slow, *missing ? ", missing" : "", missing);
                fflush(stdout);
            }
    }
    return 0;
}
