#include "client/plan_capture.h"

namespace tessera {
namespace {

thread_local PlanCapture* current = nullptr;

}  // namespace

PlanCapture::PlanCapture() : outer_(current) { current = this; }
PlanCapture::~PlanCapture() { current = outer_; }
PlanCapture* PlanCapture::Current() { return current; }

}  // namespace tessera
