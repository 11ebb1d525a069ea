#include "schemas/ops/speaker.h"

#include "schemas/ops/catalog.h"

namespace tessera {

std::string_view NameOf(OpId op, Speaker speaker) { return speaker == Speaker::kOp ? NameOf(op) : NameOf(speaker); }

}  // namespace tessera
