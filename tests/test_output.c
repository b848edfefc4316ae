// test_output.c - a run replaces only checkpoints. (test_save_fails.sh: how it replaces them, and the lock.)
#include "output.h"
#include "test.h"

TEST(only_checkpoints_are_replaced)
{
    Error err;
    test_file("st", "\x10\0\0\0\0\0\0\0{}", 10);
    test_file("empty", "", 0);
    test_file("text", "int main(void);\n", 16);
    test_file("best.best", "{\"event\":\"config\"}\n", 19);
    EXPECT(output_claim(test_path("st"), &err), "%s", err.text);
    EXPECT(output_claim(test_path("empty"), &err), "%s", err.text);
    EXPECT(!output_claim(test_path("text"), &err) && strstr(err.text, "text exists, but is not a readable checkpoint"),
           "%s", err.text);
    EXPECT(!output_claim(test_path("best"), &err) && strstr(err.text, "best.best exists"), "%s", err.text);
    EXPECT(!output_claim(test_path(""), &err) && strstr(err.text, "exists, but is not a readable checkpoint"),
           "%s", err.text);
}

TEST_MAIN
