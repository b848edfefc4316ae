// folder.h - pictures in folders, as torchvision's ImageFolder expects them:
//
//   DIR/train/CLASS/FILE, DIR/val/CLASS/FILE       or a single level: DIR/CLASS/FILE
//   FILE.tar                                       one of these, not compressed
//
// Classes are the sorted names of the folders, so label 0 is the first. Within a class come the
// files of the folder itself, sorted, then those of the folders inside it. Names are compared byte
// by byte. Symbolic links are followed. All this is ImageFolder's order.
//
// Hidden names (.DS_Store, .ipynb_checkpoints) are left out, also those of folders; so are files
// beside the folders of classes. Every other file has to be a picture: one that is not called .jpg,
// .jpeg or .png is opened, and must begin as a JPEG or a PNG. (ImageFolder passes over names
// without a picture's ending.) Refused before training, by name: such files, empty files, pipes and
// devices, dangling and circular links, folders that cannot be read, a class without files, a
// single class, classes of val that are not those of train, train without val.
//
// An archive may have one folder around it all (tar cf pets.tar pets). Its headers are read once;
// links in it are refused: write it with tar --dereference --hard-dereference. 2 TiB at most.
//
// Memory: for each file its path in the tree and 17 bytes. 1.28 million files of ImageNet: 68 MB.
#pragma once
#include "check.h"
#include <stddef.h>
#include <stdint.h>

// The files of train/, of val/, or of a single level.
typedef struct FileList {
    const char *set;        // "train/", "val/" or ""
    int count;
    int32_t *labels;        // (count)
    const struct FilePlace *places; // (count)
    const char *paths;      // their text
} FileList;

typedef struct Folder {
    char *path;             // DIR or FILE.tar
    int tar;                // the archive's descriptor, or -1
    int classes;
    char **class_names;     // (classes)
    FileList train, val;    // val.count is 0 where there is a single level: the caller splits train

    char *text;             // all paths, each with a zero after it
    size_t text_size, text_capacity;
    size_t inside;          // of an archive: how many bytes of each path name the folder around all
    struct FilePlace *places;
    size_t count, capacity; // of places
    int32_t *labels;
} Folder;

// Should data_open take `path` for pictures? It is called .tar, or is a folder that has folders.
bool folder_recognised(const char *path);
// Lists everything. On an error nothing is left to close.
bool folder_open(Folder *folder, const char *path, Error *err);
void folder_close(Folder *folder);

enum { FOLDER_FILE_BYTES = 256 << 20 }; // a larger file is refused

// The bytes of a file. Begin with { 0 }; folder_read lets the memory grow and uses it again.
typedef struct FileBytes {
    uint8_t *bytes;
    size_t size, capacity;
} FileBytes;

// Any number of threads may read, each into its own `to`; the caller frees to->bytes.
bool folder_read(const Folder *folder, const FileList *files, int index, FileBytes *to, Error *err);
// For messages: "DIR/train/cat/1.jpg", or "pets.tar: pets/train/cat/1.jpg"; shortened to size.
void folder_name(const Folder *folder, const FileList *files, int index, char *name, size_t size);
// What identifies a file wherever the folder is: "train/cat/1.jpg".
const char *folder_file(const FileList *files, int index);
