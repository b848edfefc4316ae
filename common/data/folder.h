// folder.h - pictures in folders, as torchvision's ImageFolder expects them:
//
//   DIR/train/CLASS/FILE, DIR/val/CLASS/FILE       or a single level: DIR/CLASS/FILE
//
// Classes are the sorted names of the folders; label 0 is the first. Within a class, the sorted
// files of the folder itself come first, then those of the folders inside it. Names are compared
// byte by byte. Symbolic links are followed. This is ImageFolder's order.
//
// As in ImageFolder, only files called .jpg, .jpeg or .png (or .JPG) count; hidden ones and those
// next to the class folders are skipped. These are errors before training, and name the file: pipes
// and devices, broken and circular links, folders that cannot be read, a class without pictures, a
// single class, classes of val that differ from those of train, train without val.
//
// Memory: 9 bytes and the path in the tree for each file; ImageNet's 1.28 million take 58 MB.
#pragma once
#include "check.h"
#include <stddef.h>
#include <stdint.h>

typedef struct FolderFile {
    uint32_t path;          // where it begins in the text
    int32_t label;
} FolderFile;

typedef struct Folder {
    char *path;             // DIR
    bool sets;              // train/ and val/; else a single level, which the caller splits
    int classes;
    char **class_names;     // (classes)
    int count, train_count; // of files: first those of train, or all of a single level
    FolderFile *files;      // (count)

    char *text;             // all paths, each ends with a zero
    size_t text_size, text_capacity, capacity;
} Folder;

// Lists all files. On an error it frees everything.
bool folder_open(Folder *folder, const char *path, Error *err);
void folder_close(Folder *folder);

enum { FOLDER_FILE_BYTES = 256 << 20 }; // a larger file is refused

// The bytes of a file. Begin with { 0 }; folder_read grows the memory and reuses it.
typedef struct FileBytes {
    uint8_t *bytes;
    size_t size, capacity;
} FileBytes;

// Thread-safe, if each thread has its own `to`. The caller frees to->bytes.
bool folder_read(const Folder *folder, int file, FileBytes *to, Error *err);
// For messages: "DIR/train/cat/1.jpg", shortened to size.
void folder_name(const Folder *folder, int file, char *name, size_t size);
// What identifies a file wherever the folder is: "train/cat/1.jpg".
const char *folder_file(const Folder *folder, int file);
