#include "schemas/ops/called_as.h"

#include "schemas/ops/catalog.h"

namespace tessera {

std::string_view NameOf(OpId op, CalledAs called_as) {
  return called_as == CalledAs::kOp ? NameOf(op) : NameOf(called_as);
}

}  // namespace tessera
