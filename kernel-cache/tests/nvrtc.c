// A compiler whose work can be counted: a line in the file that COMPILED names for each program.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct program { char *text, *ptx; };

int nvrtcVersion(int *major, int *minor) { *major = 98; *minor = 7; return 0; }
const char *nvrtcGetErrorString(int code) { return code ? "wrong" : "right"; }
int nvrtcCreateProgram(struct program **out, const char *text, const char *name, int headers, const char **texts, const char **names) {
  *out = calloc(1, sizeof **out);
  (*out)->text = strdup(text);
  return 0;
}
int nvrtcDestroyProgram(struct program **program) { *program = 0; return 0; }
#ifndef INCOMPLETE
int nvrtcAddNameExpression(struct program *program, const char *name) { return 0; }
#endif
int nvrtcCompileProgram(struct program *program, int count, const char **options) {
  FILE *file = fopen(getenv("COMPILED"), "a");
  fprintf(file, "%s\n", program->text);
  fclose(file);
  if (strstr(program->text, "wrong")) return 6;
  program->ptx = malloc(1000);
  sprintf(program->ptx, "PTX of %s", program->text);
  for (int i = 0; i < count; i++) sprintf(program->ptx + strlen(program->ptx), " %s", options[i]);
  return 0;
}
int nvrtcGetPTXSize(struct program *program, size_t *size) { return program->ptx ? (*size = strlen(program->ptx) + 1, 0) : 4; }
int nvrtcGetPTX(struct program *program, char *text) { return program->ptx ? (strcpy(text, program->ptx), 0) : 4; }
int nvrtcGetProgramLogSize(struct program *program, size_t *size) { *size = 12 + strlen(program->text) + 1; return 0; }
int nvrtcGetProgramLog(struct program *program, char *text) { sprintf(text, "compiled is %s", program->text); return 0; }
int nvrtcGetCUBINSize(struct program *program, size_t *size) { return program->ptx ? (*size = 6, 0) : 4; }
int nvrtcGetCUBIN(struct program *program, char *text) { return program->ptx ? (strcpy(text, "cubin"), 0) : 4; }
