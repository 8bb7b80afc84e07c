-- Health of an IdempotentJob for Argo CD, which does not read Ready, Reconciling and Stalled of kinds that it does not know.
-- docs/helm.md says how it is installed; a test runs it in Argo CD's own interpreter over every status of real jobs.
local status = obj.status or {}
if status.phase == nil or status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "the operator has not seen this version of the object yet" }
end
local healthOf = {
  Succeeded = "Healthy", Failed = "Degraded", Cancelled = "Degraded", Held = "Degraded", Mismatch = "Degraded", Expired = "Degraded",
}
local health = healthOf[status.phase] or "Progressing"  -- an earlier operator wrote no conditions that say more
for _, condition in ipairs(status.conditions or {}) do
  if condition.status == "True" then
    if condition.type == "Ready" then
      health = "Healthy"
    elseif condition.type == "Stalled" then
      health = "Degraded"
    elseif condition.type == "Reconciling" then
      health = condition.reason == "Suspended" and "Suspended" or "Progressing"
    end
  end
end
return { status = health, message = status.message or status.phase }
