-- Refuses jobs that Slurm would accept and never start, or give a GPU that is not free, and tells their owners why.
-- Copy it beside slurm.conf, or call partage_refusal() from your own job_submit.lua; in slurm.conf:
-- JobSubmitPlugins=lua. It runs in slurmctld and asks nobody. More in docs/how-to/slurm.md

-- Shares of one GPU: a job's shares come from one GPU (unless MULTIPLE_SHARING_GRES_PJ is set: then write nil).
local MOST_MPS = 100
local MOST_SHARDS = nil -- the largest 'replicas' of your policies, such as 4; nil: not checked
-- Before Slurm 23.11.5 a job with a whole GPU may be started on one that is still shared: true keeps such jobs to GPUs
-- that are never shared. Then every job has to name the type of its GPUs, and cannot have a shared one whole.
local NAME_TYPES = false
local SHARED = "_shared" -- how the types of shared GPUs end, as 'partage slurm config' writes them
-- What stands behind Features= of your nodes with shares, such as { "h100" }: only this is advised for --constraint,
-- since a job with another one is not accepted.
local FEATURES = {}

local function number(text)
  local digits, scale = string.match(text or "", "^(%d+)([kKmM]?)$")
  if digits == nil then
    return nil
  end
  return tonumber(digits) * (({ k = 1024, m = 1048576 })[string.lower(scale)] or 1)
end

-- The GRES of one request, "gres:gpu:h100:2,gres/mps:25", as {name, type, count}.
local function parts(text)
  local found = {}
  for part in string.gmatch(text or "", "[^,]+") do
    local plain = string.gsub(part, "^gres[/:]", "")
    local words = {}
    for word in string.gmatch(plain, "[^:=]+") do
      words[#words + 1] = word
    end
    local count = number(words[#words])
    local kind = nil
    if #words == 3 or (#words == 2 and count == nil) then
      kind = words[2]
    end
    found[#found + 1] = { name = words[1], kind = kind, count = count or 1 }
  end
  return found
end

-- Of a share with a type: the same without it, and the feature that says the same, if a node has it.
local function without_type(one)
  local advice = "write " .. one.name .. ":" .. one.count
  for _, feature in ipairs(FEATURES) do
    if one.kind == feature or one.kind == feature .. SHARED then
      return advice .. " and --constraint=" .. feature
    end
  end
  return advice
end

-- Why a job is refused, a sentence; nil: it is not.
function partage_refusal(job)
  local has = {}
  for _, key in ipairs({ "tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task" }) do
    for _, one in ipairs(parts(job[key])) do
      has[one.name] = has[one.name] or one
      if (one.name == "mps" or one.name == "shard") and one.kind ~= nil then
        return one.name .. " has no type: " .. without_type(one)
      end
      if one.name == "mps" and MOST_MPS ~= nil and one.count > MOST_MPS then
        return "mps:" .. one.count .. " would wait for ever: a job's mps come from one GPU, which has " .. MOST_MPS
          .. "; ask for a whole GPU"
      end
      if one.name == "shard" and MOST_SHARDS ~= nil and one.count > MOST_SHARDS then
        return "shard:" .. one.count .. " would wait for ever: a job's shards come from one GPU, which has "
          .. MOST_SHARDS .. "; ask for a whole GPU"
      end
      if one.name == "gpu" and NAME_TYPES and one.kind == nil then
        return "name the type of the GPU, as in gpu:h100:1: without one you may get a GPU that others still share"
      end
      if one.name == "gpu" and NAME_TYPES and string.sub(one.kind, -#SHARED) == SHARED then
        return "gpu:" .. one.kind .. " is shared by several jobs: ask for mps or shard, or for a GPU that is not shared"
      end
    end
  end
  if has.mps and has.shard then
    return "ask for mps or for shard, not for both: they would be of different GPUs"
  end
  local share = has.mps or has.shard
  if share and job.shared == 0 then
    return "with --exclusive a job gets no " .. share.name .. " and waits for ever: leave one of them away"
  end
  return nil
end

function slurm_job_submit(job, partitions, uid)
  local why = partage_refusal(job)
  if why ~= nil then
    slurm.log_user("%s", "partage: " .. why) -- a % in a type is no format
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm_job_submit(job, partitions, uid)
end
