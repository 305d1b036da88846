/* DeepGEMM in vLLM 0.32's wheel is built against torch 2.13 and asks for five symbols that torch 2.11 has under another name or not at
   all: torch::Library::_def with tags in namespace torch::headeronly (2.11: at; the same enumeration), c10::ValueError's constructor,
   and two functions that give an exception's text. The first two are passed on, the others can only be reached by an error.

   cc -shared -fPIC symbols.c -o libsymbols.so -L TORCH/lib -ltorch_cpu -lc10 */

#define PASS_ON(asked, has)                                                                                                                \
    __asm__(".text\n.globl " asked "\n.type " asked ", @function\n" asked ":\n\tjmp " has "@PLT\n");

PASS_ON("_ZNR5torch7Library4_defEON3c1014FunctionSchemaEPNS1_12OperatorNameERKSt6vectorINS_10headeronly3TagESaIS8_EENS_17_RegisterOrVerifyE",
        "_ZNR5torch7Library4_defEON3c1014FunctionSchemaEPNS1_12OperatorNameERKSt6vectorIN2at3TagESaIS8_EENS_17_RegisterOrVerifyE")
PASS_ON("_ZNR5torch7Library4_defEOSt7variantIJN3c1012OperatorNameENS2_14FunctionSchemaEEEONS_11CppFunctionERKSt6vectorINS_10headeronly3TagESaISB_EE",
        "_ZNR5torch7Library4_defEOSt7variantIJN3c1012OperatorNameENS2_14FunctionSchemaEEEONS_11CppFunctionERKSt6vectorIN2at3TagESaISB_EE")
PASS_ON("_ZN3c1010ValueErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE")

const char *torch_exception_get_what(void *exception) { return "an error in a kernel's library (its text needs torch 2.13)"; }

const char *torch_exception_get_what_without_backtrace(void *exception) { return torch_exception_get_what(exception); }
